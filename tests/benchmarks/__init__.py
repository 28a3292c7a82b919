"""Tests of the benchmarks: that what they print is sound, not how fast anything is."""
