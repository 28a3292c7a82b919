"""What brings machines to a run."""
