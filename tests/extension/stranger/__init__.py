"""Someone else's package."""
