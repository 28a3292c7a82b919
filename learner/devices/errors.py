"""The error of devices, in a file of its own so that catching it imports no torch."""

from __future__ import annotations


class DeviceError(ValueError):
    """A device or precision that is not available here; the message says what is missing."""
