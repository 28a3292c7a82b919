"""Learning in numpy, for networks whose every part is known."""
