"""How values are typed: counts, durations, sizes."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
UNITS_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9}


def whole_number(text: str) -> int:
    """12, 12_000 or 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def switch(text: str) -> bool:
    """true or false."""
    known = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    return known[text.lower()]


def lengths(text: str) -> list[float]:
    """0.05,0.02."""
    found = [float(part) for part in text.split(",")]
    if not all(0 < length < 100 for length in found):
        raise ValueError(text)
    return found


def _with_unit(text: str, units: dict[str, float]) -> float:
    lowered = text.lower()
    for unit in sorted(units, key=len, reverse=True):
        if lowered.endswith(unit):
            return float(lowered.removesuffix(unit)) * units[unit]
    return float(lowered)


def duration_seconds(text: str) -> float:
    """90s, 5m, 2h, or plain seconds."""
    return _with_unit(text, UNITS_SECONDS)


def number_of_bytes(text: str) -> int:
    """4e9 or 4GB."""
    return int(_with_unit(text, UNITS_BYTES))


def argument(parse: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """An argparse type whose complaint says what is expected."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return convert


COUNT = argument(whole_number, "a whole number (12, 12_000 and 1e6 are)")
NUMBER = argument(float, "a number")
DURATION = argument(duration_seconds, "a duration (90s, 5m and 2h are)")
BYTES = argument(number_of_bytes, "a number of bytes (4e9 and 4GB are)")
SWITCH = argument(switch, "true or false")
TOLERANCES = argument(lengths, "lengths in metres greater than 0, as in 0.05,0.02")
