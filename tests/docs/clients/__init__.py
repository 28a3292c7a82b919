"""Programs that connect, in other languages."""
