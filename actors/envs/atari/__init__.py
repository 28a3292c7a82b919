"""Atari 2600 games (ale-py) with the usual preprocessing."""
