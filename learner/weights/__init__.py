"""Weights between processes and on disk."""
