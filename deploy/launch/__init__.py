"""Checks and prepares a run before its processes start."""
