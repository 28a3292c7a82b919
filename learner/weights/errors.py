"""Light to import, for those that only have to catch it."""

from __future__ import annotations


class CheckpointError(ValueError):
    """Weights that cannot be used; the message says why in one line."""
