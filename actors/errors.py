"""The error for environments that cannot be made or that break Gymnasium's API."""

from __future__ import annotations

import traceback

from transport.text import plain

OF_OLD_GYM = "the space is of the package gym, which gymnasium has replaced: write `from gymnasium import spaces`"


class EnvError(RuntimeError):
    """One line: what failed, why, and what to do."""


def in_one_line(error: BaseException) -> str:
    """An error that an environment's code raised, with its place: "ValueError: no such level (maze.py:31)"."""
    if isinstance(error, EnvError):
        return plain(str(error))
    text = plain(" ".join(f"{type(error).__name__}: {error}".split()))
    calls = traceback.extract_tb(error.__traceback__)
    return f"{text} ({calls[-1].filename}:{calls[-1].lineno})" if calls else text


def is_of_old_gym(thing: object) -> bool:
    """True for objects of the package gym, which gymnasium has replaced: its classes have the same names but differ."""
    return any(kind.__module__.partition(".")[0] == "gym" for kind in type(thing).__mro__)
