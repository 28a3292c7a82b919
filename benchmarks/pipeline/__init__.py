"""A whole run around a simulator that costs nothing."""
