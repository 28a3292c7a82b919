"""Keeps the processes of a run alive."""
