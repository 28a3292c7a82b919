"""Snake, many boards at once."""
