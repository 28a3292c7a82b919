"""Weights: published to actors, followed by actors, saved to disk and restored."""
