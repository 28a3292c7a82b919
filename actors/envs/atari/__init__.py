"""Atari 2600 games (ale-py) as deep Q-networks usually play them."""
