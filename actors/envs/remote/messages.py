"""Messages between a program and the actor that it has connected to. A text is JSON, binary data is MessagePack.

A program says Hello; the actor answers {"welcome": {...}}. Then a program that asks sends an outcome, the first one without a
reward, and gets {"action": ...}. One that serves gets {"reset": true, "seed": N} or {"action": ...}, and answers with an outcome.
Before the actor closes a connection it sends {"close": "why", "again": true} where the program may connect again, as between
the check before the launch and the run.

An outcome is a map:

    observation         to act on next: of one that asks, where an episode has ended, the first of the next
    reward              of the last action
    terminated          true where the episode has ended; absent: false
    truncated           true where it was cut off; absent: false
    final_observation   of one that asks: the last observation of an episode that was truncated
    info                may have is_success or success, score, and what env.info_keywords names

With `environments` in its hello, all values have one more axis in front, as in Gymnasium's vector environments; `info` is a map
of lists, or a list of maps. See actors/envs/foreign/plain_data.py for the values.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import gymnasium
import msgspec
import numpy as np

from actors.envs.foreign.plain_data import decode, read_batch, read_one
from actors.envs.spaces import read_space
from actors.errors import EnvError
from replay.config import LARGEST

PROTOCOL = 1
MOST_ENVIRONMENTS = 1_024  # of one program
MOST_NAME = 40
MOST_NUMBERS = 1_000_000  # of an observation or an action
INFO = ("is_success", "success", "score")
SIZES = {"shape": math.prod, "n": math.prod, "nvec": sum}  # keys of spaces -> how many numbers there are
SPACE_DEFAULTS = {
    "box": {"low": None, "high": None, "dtype": "<f4"},
    "discrete": {"start": 0},
    "multidiscrete": {"start": 0, "dtype": "<i8"},
}


class InvalidMessage(ValueError):
    """What a program has sent is none of these messages; one line."""


class Hello(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first message of a program."""

    token: str
    observation: dict[str, Any]  # spaces, as `describe_space` gives them
    action: dict[str, Any]
    protocol: int = PROTOCOL
    mode: Literal["ask", "serve"] = "ask"
    environments: int | None = None  # None: one, and values have no axis for it
    name: str = ""

    @property
    def count(self) -> int:
        return self.environments or 1


class Outcome(NamedTuple):
    """What K environments of a program have answered; arrays [K, …]."""

    observation: Any
    reward: np.ndarray | None  # [K] float32; None: episodes begin
    terminated: np.ndarray  # [K] bool
    truncated: np.ndarray  # [K] bool, never where terminated
    final_observation: Any  # None unless one is truncated
    info: dict[str, list[Any]]  # [K] each


def _decode(data: str | bytes) -> dict[str, Any]:
    """Raises InvalidMessage."""
    binary = isinstance(data, bytes)
    try:
        return decode(data, binary, dict[str, Any])
    except ValueError as error:
        raise InvalidMessage(f"a message is no map in {'msgpack' if binary else 'json'}: {error}") from None


def read_hello(data: str | bytes) -> Hello:
    """Raises InvalidMessage."""
    try:
        hello = msgspec.convert(_decode(data), Hello)
    except msgspec.ValidationError as error:
        raise InvalidMessage(f"hello: {error}") from None
    if hello.protocol != PROTOCOL:
        raise InvalidMessage(f"hello: this is protocol {PROTOCOL}, not {hello.protocol}")
    if hello.environments is not None and not 1 <= hello.environments <= MOST_ENVIRONMENTS:
        raise InvalidMessage(f"hello: environments must be 1 to {MOST_ENVIRONMENTS:,}")
    if hello.mode == "serve" and hello.environments is not None:
        raise InvalidMessage("hello: a program that serves has one environment for each connection: leave `environments` out")
    if len(hello.name) > MOST_NAME or not hello.name.isprintable():
        raise InvalidMessage(f"hello: a name has at most {MOST_NAME} printable characters")
    return hello


def read_spaces(hello: Hello) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any]]:
    """The spaces of observation and action. Raises InvalidMessage."""
    try:
        _check_size(hello.observation)
        _check_size(hello.action)
        return read_space(_with_defaults(hello.observation)), read_space(_with_defaults(hello.action))
    except (EnvError, RecursionError, MemoryError) as error:
        raise InvalidMessage(f"hello: {error}") from None


def _check_size(data: Any) -> None:
    """Raises InvalidMessage for a space that would take much memory to make."""
    if isinstance(data, list):
        for part in data:
            _check_size(part)
    elif isinstance(data, dict):
        for key, value in data.items():
            numbers = [one for one in (value if isinstance(value, list) else [value]) if isinstance(one, int)]
            if key in SIZES and SIZES[key](numbers) > MOST_NUMBERS:
                raise InvalidMessage(f"hello: a space has more than {MOST_NUMBERS:,} numbers")
            _check_size(value)


def _with_defaults(data: Any) -> Any:
    if not isinstance(data, dict):
        return data
    parts = data.get("spaces")
    if isinstance(parts, dict):
        return data | {"spaces": {name: _with_defaults(part) for name, part in parts.items()}}
    if isinstance(parts, list):
        return data | {"spaces": [_with_defaults(part) for part in parts]}
    kind = data.get("kind")
    filled = SPACE_DEFAULTS.get(kind, {}) | data if isinstance(kind, str) else data
    if kind == "multidiscrete" and filled["start"] == 0:
        filled = filled | {"start": np.zeros_like(np.array(filled.get("nvec", 0))).tolist()}
    return filled


class OutcomeReader:
    """Reads the outcomes of one program."""

    def __init__(self, hello: Hello, space: gymnasium.Space[Any], info_keywords: tuple[str, ...] = ()) -> None:
        self._space, self._count, self._single = space, hello.count, hello.environments is None
        self._asks, self._keys = hello.mode == "ask", (*INFO, *info_keywords)

    def read(self, data: str | bytes) -> Outcome:
        """Raises InvalidMessage."""
        found = _decode(data)
        try:
            observation = self._observation(found, "observation")
            terminated, truncated = self._flags(found, "terminated"), self._flags(found, "truncated")
            truncated &= ~terminated
            wanted = self._asks and bool(truncated.any())
            if wanted and "final_observation" not in found:
                raise ValueError("a truncated episode needs final_observation, its last observation")
            final = self._observation(found, "final_observation") if wanted else None
            reward = self._rewards(found["reward"]) if found.get("reward") is not None else None
            return Outcome(observation, reward, terminated, truncated, final, self._info(found.get("info")))
        except ValueError as error:
            raise InvalidMessage(str(error)) from None

    def _observation(self, found: dict[str, Any], name: str) -> Any:
        if name not in found:
            raise ValueError(f"a message has no {name}")
        read = read_one if self._single else lambda space, data, name: read_batch(space, data, self._count, name)
        return read(self._space, found[name], name)

    def _rewards(self, data: Any) -> np.ndarray:
        values = [data] if self._single else data
        numbers = isinstance(values, list) and all(isinstance(one, int | float) and abs(one) <= LARGEST for one in values)
        if not numbers or len(values) != self._count:
            raise ValueError(
                f"reward must be a finite number of at most {LARGEST:g}" + ("" if self._single else f" of each of {self._count}")
            )
        return np.array(values, np.float32)

    def _flags(self, found: dict[str, Any], name: str) -> np.ndarray:
        values = found.get(name)
        values = [False] * self._count if values is None else [values] if self._single else values
        flags = isinstance(values, list) and all(one in (0, 1) for one in values)
        if not flags or len(values) != self._count:
            raise ValueError(f"{name} must be true or false" + ("" if self._single else f" of each of {self._count}"))
        return np.array(values, bool)

    def _info(self, info: Any) -> dict[str, list[Any]]:
        of_each = [info] if self._single else info
        if isinstance(of_each, dict):  # of lists
            of_each = [
                {key: values[k] for key, values in of_each.items() if isinstance(values, list) and len(values) == self._count}
                for k in range(self._count)
            ]
        if not isinstance(of_each, list) or len(of_each) != self._count:
            of_each = [None] * self._count
        return {key: [one.get(key) if isinstance(one, dict) else None for one in of_each] for key in self._keys}
