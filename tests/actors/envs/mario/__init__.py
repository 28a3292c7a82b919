"""Mario."""
