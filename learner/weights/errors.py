"""The error of weights, in a file of its own so that catching it imports nothing."""

from __future__ import annotations


class CheckpointError(ValueError):
    """Weights that cannot be used; the message says why in one line."""
