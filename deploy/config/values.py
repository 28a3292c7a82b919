"""Values from text: what a user types for an option, by the type of the option."""

from __future__ import annotations

import argparse
import tomllib
import typing
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from datetime import time as clock
from types import UnionType
from typing import Any

import msgspec

from deploy.errors import ConfigError
from transport.names import nearest

SCHEDULES = {"lin_": "linear", "cos_": "cosine"}  # what a learning rate may begin with
UNITS_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
UNITS_BYTES = {"kb": 1e3, "mb": 1e6, "gb": 1e9}
SWITCHES = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def split_message(error: msgspec.ValidationError) -> tuple[str, str]:
    """(reason, key) of a validation error, `Expected `int` >= 1 - at `$.jobs``; the key is empty for the whole table."""
    text, _, key = str(error).replace("`", "").partition(" - at $.")
    return f"{text[0].lower()}{text[1:]}", key


class Text(str):
    """The value of a flag as it was typed, until the type of the option is known."""


def whole_number(text: str) -> int:
    """12, 12_000 or 1e6."""
    try:
        return int(text)
    except ValueError:
        number = float(text)
    if number != int(number):
        raise ValueError(text)
    return int(number)


def number(text: str) -> int | float:
    """A whole number where it is one."""
    try:
        return whole_number(text)
    except ValueError:
        return float(text)


def rate(text: str) -> float | str:
    """3e-4; or lin_3e-4 as it is, which deploy/config/layers.py splits into a rate and its schedule."""
    return text if isinstance(split_rate(text), tuple) else float(text)


def share(text: str) -> float:
    """20% or 0.2."""
    value = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    if not 0 < value <= 1:
        raise ValueError(text)
    return value


def split_rate(value: object) -> object:
    """(3e-4, linear) of lin_3e-4; any other value as it is. Raises ValueError."""
    if isinstance(value, str) and (schedule := SCHEDULES.get(value[:4])):
        return float(value[4:]), schedule
    return value


def switch(text: str) -> bool:
    return SWITCHES[text.lower()]


def _with_unit(text: str, units: dict[str, float]) -> float:
    lowered = text.lower()
    for unit in sorted(units, key=len, reverse=True):
        if lowered.endswith(unit):
            return float(lowered.removesuffix(unit)) * units[unit]
    return float(lowered)


def duration_seconds(text: str) -> float:
    """90s, 5m, 2h, or plain seconds."""
    return _with_unit(text, UNITS_SECONDS)


def moment(text: str, now: datetime | None = None) -> float:
    """Seconds since 1970 of the next 07:00 by the clock of this machine, or of 2026-12-01T07:00."""
    now = now or datetime.now()
    try:
        at = datetime.combine(now.date(), clock.fromisoformat(text))
    except ValueError:
        return datetime.fromisoformat(text).timestamp()
    if at.tzinfo is not None:
        raise ValueError(text)
    return (at if at > now else at + timedelta(days=1)).timestamp()


def number_of_bytes(text: str) -> int:
    """4e9 or 4GB."""
    return int(_with_unit(text, UNITS_BYTES))


def any_value(text: str) -> Any:
    """The text as a value of TOML, or the text itself."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def argument(parse: Callable[[str], Any], what: str) -> Callable[[str], Any]:
    """An argparse type whose error says what is expected."""

    def convert(text: str) -> Any:
        try:
            return parse(text)
        except (ValueError, KeyError, OverflowError):
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}") from None

    return convert


def choice(known: Sequence[str]) -> Callable[[str], str]:
    """An argparse type that accepts one of a few words."""

    def convert(text: str) -> str:
        if text not in known:
            raise argparse.ArgumentTypeError(f"{text!r} is not one of its values; {nearest(text, filter(None, known))}")
        return text

    return convert


COUNT = argument(whole_number, "a whole number, such as 12, 12_000 or 1e6")
NUMBER = argument(float, "a number")
RATE = argument(rate, "a learning rate, such as 3e-4, or lin_3e-4 or cos_3e-4 for one that falls")
ANY_NUMBER = argument(number, "a number")
SHARE = argument(share, "a share: write 20% or 0.2")
DURATION = argument(duration_seconds, "a duration, such as 90s, 5m or 2h")
MOMENT = argument(moment, "a time, such as 07:00 or 2026-12-01T07:00")
BYTES = argument(number_of_bytes, "a number of bytes, such as 4e9 or 4GB")
SWITCH = argument(switch, "true or false")


def plain(kind: Any) -> Any:
    """A type without its annotations, and X of `X | None`."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return plain(typing.get_args(kind)[0]) if typing.get_origin(kind) in (typing.Union, UnionType) else kind


def _is_any_number(kind: Any) -> bool:
    """True for int | float."""
    if typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return set(typing.get_args(kind)) == {int, float}


def reader(path: str, kind: Any, choices: Sequence[str] = ()) -> tuple[Callable[[str], Any], str]:
    """The argparse type for an option of this name and type, and the word for its values in the help."""
    any_number, kind = _is_any_number(kind), plain(kind)
    if typing.get_origin(kind) is tuple:
        read, metavar = reader(path, typing.get_args(kind)[0])
        return lambda text: [read(part) for part in text.split(",") if part], f"{metavar},…"
    if typing.get_origin(kind) is typing.Literal:
        values = choices or typing.get_args(kind)
        return choice(values), "{" + ",".join(filter(None, values)) + "}"
    if kind is bool:
        return SWITCH, "true|false"
    if kind in (int, float) and path.endswith("_seconds"):
        return DURATION, "TIME"
    if kind in (int, float) and path.endswith("_bytes"):
        return BYTES, "BYTES"
    if path == "learner.learning_rate":
        return RATE, "X"
    if any_number:
        return ANY_NUMBER, "X"
    known: dict[Any, tuple[Callable[[str], Any], str]] = {int: (COUNT, "N"), float: (NUMBER, "X"), Any: (any_value, "VALUE")}
    return known.get(kind, (str, "TEXT"))


def read_text(path: str, kind: Any, text: str) -> Any:
    """The value of a flag whose type was not known when it was parsed. Raises ConfigError."""
    try:
        return reader(path, kind)[0](text)
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"--{path.replace('_', '-')}: {error}") from None
