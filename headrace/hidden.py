"""Finds a user's module that hides one of Headrace's packages, as `replay.py` beside a script does."""

from __future__ import annotations

import importlib.util
from pathlib import Path

PACKAGES = ("transport", "replay", "learner", "actors", "deploy")


def complaint() -> str:
    """What is hidden by what, and the fix; empty if nothing is. Imports nothing."""
    beside = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        found = importlib.util.find_spec(name)
        if found is not None and found.origin and Path(found.origin).resolve().parent != beside / name:
            return f"{found.origin} hides Headrace's own package `{name}`: give it another name"
    return ""
