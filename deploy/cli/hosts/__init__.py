"""Commands for other machines."""
