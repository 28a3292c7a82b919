"""The error of every configuration."""

from __future__ import annotations


class ConfigError(ValueError):
    """A configuration that cannot be: one line that names the key and the fix."""
