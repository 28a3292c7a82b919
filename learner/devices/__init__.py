"""Accelerators: which are available, and what each supports."""
