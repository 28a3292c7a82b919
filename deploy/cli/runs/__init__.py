"""Commands that start, stop and look at runs."""
