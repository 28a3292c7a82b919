"""Studies of many runs: a suite compares contestants, a sweep searches for good settings."""
