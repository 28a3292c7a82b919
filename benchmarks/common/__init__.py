"""What all benchmarks share: reports, processes, settings, recorded frames."""
