"""Reads the files of a run, while it grows or afterwards."""
