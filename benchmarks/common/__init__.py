"""Shared by all benchmarks: reports, processes, settings, recorded frames."""
