"""Experience as data sets: out of runs, and into runs as demonstrations."""
