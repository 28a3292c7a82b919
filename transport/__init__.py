"""Bytes between processes. Knows arrays, knows nothing of learning."""
