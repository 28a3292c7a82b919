"""What the files of a run say about it, read while it grows."""
