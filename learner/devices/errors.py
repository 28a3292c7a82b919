"""Without torch, for processes that only catch it."""

from __future__ import annotations


class DeviceError(ValueError):
    """A device or precision that is not to be had here; the message says what is missing."""
