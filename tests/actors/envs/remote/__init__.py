"""Programs that connect."""
