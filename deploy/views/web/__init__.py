"""A run in a browser: live, and as one file."""
