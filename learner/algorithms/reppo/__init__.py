"""REPPO."""
