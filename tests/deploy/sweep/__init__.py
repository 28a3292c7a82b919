"""A search over settings."""
