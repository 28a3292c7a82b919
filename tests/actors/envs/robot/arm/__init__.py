"""The arm."""
