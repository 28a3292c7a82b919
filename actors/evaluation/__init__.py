"""Episodes played to measure, to watch and to draw a policy."""
