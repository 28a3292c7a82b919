"""Actors: their rate, their start, their inference, and the simulators beneath them."""
