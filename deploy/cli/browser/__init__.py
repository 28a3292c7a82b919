"""Commands that show runs in a browser."""
