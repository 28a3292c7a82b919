"""Starts, watches, replaces and stops the processes of a run."""
