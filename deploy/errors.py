"""Errors that a command reports in one line, with an exit status of their own."""

from __future__ import annotations


class ConfigError(ValueError):
    """Settings or arguments that are wrong: one line that names the key or flag, the reason and the fix."""


class RunRefused(RuntimeError):
    """A run that is not safe to start. The text says why and what to do."""
