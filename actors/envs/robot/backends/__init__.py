"""What moves K arms."""
