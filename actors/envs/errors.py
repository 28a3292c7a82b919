"""The error for environments that cannot be made or that break Gymnasium's API."""

from __future__ import annotations

import traceback


class EnvError(Exception):
    """One line: what failed, why, and what to do."""


def in_one_line(error: BaseException) -> str:
    """What an environment's code has raised, and where: "ValueError: no such level (maze.py:31)"."""
    if isinstance(error, EnvError):
        return str(error)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    calls = traceback.extract_tb(error.__traceback__)
    return f"{text} ({calls[-1].filename}:{calls[-1].lineno})" if calls else text
