"""Experience in memory: a ring of chunks, how items are drawn from it, and how often."""
