"""Faults that the tests must find: what each changes, and what finds it. `python -m tests.mutations --help`."""
