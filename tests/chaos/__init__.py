"""Faults and attacks, each rehearsed: one test per row of the table that `make chaos` prints."""
