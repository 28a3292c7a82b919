"""Atari."""
