"""How long a run takes to begin."""
