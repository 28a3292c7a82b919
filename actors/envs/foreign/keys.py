"""Which keys stand for which action, so that a person can play.

Keys are called "left", "right", "up", "down", "space", "enter", "shift", "ctrl", "a" … "z", "0" … "9", wherever they come from.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.base import EnvironmentFamily
from actors.envs.foreign.actions import action_of, choices
from actors.errors import EnvError
from transport.experience import Categorical, Continuous

ARROWS: tuple[str, ...] = ("left", "right", "up", "down")
LETTERS: tuple[str, ...] = tuple(
    "asdfghjklzxcvbnmqwetyuio"
)  # not p and r, with which whoever shows an environment may pause and start anew
DIGITS: tuple[str, ...] = tuple("0123456789")
PAIRS = [("left", "right"), ("down", "up"), *((two[0], two[1]) for two in "ad sw jl ki fh gt zc vn".split())]  # less, more
# Words in the names of actions -> the key.
WORDS = {
    **dict.fromkeys(("left", "west"), "left"),
    **dict.fromkeys(("right", "east"), "right"),
    **dict.fromkeys(("up", "north", "forward"), "up"),
    **dict.fromkeys(("down", "south", "backward"), "down"),
    **dict.fromkeys(("fire", "jump"), "space"),
    **dict.fromkeys(("noop", "nothing", "idle", "none", "straight", "coast"), ""),
}
BUTTONS = {"a": "a", "b": "b", "start": "enter", "select": "shift"}  # in a name that has no other words than these and WORDS
ALSO = {"a": "space", "b": "shift"}  # a further key for each, where nothing else has it
PARTS = re.compile(f"{'|'.join(sorted(WORDS, key=len, reverse=True))}|[a-z]+")  # of a name such as UPRIGHTFIRE, too
OTHER_CODES = {13: "enter", 32: "space", 276: "left", 275: "right", 273: "up", 274: "down"}  # of pygame 1
OTHER_CODES |= {1073741903: "right", 1073741904: "left", 1073741905: "down", 1073741906: "up"}  # of SDL 2
OTHER_CODES |= {1073742048: "ctrl", 1073742049: "shift"}


class Keys:
    """Which keys stand for which action of a space."""

    def __init__(self, space: gymnasium.Space, names: Sequence[str] = (), own: Mapping[Any, Any] | None = None) -> None:
        """`names`: of discrete actions, or of the entries of a continuous one. `own`: what the environment's
        get_keys_to_action() gives, which is used where the names do not say enough. Raises EnvError for a space that no keys can
        steer."""
        kind = action_of(space)
        self._scheme: _OneChoice | _Choices | _Numbers
        if isinstance(kind, Continuous):
            self._scheme = _Numbers(kind, names)
        elif isinstance(space, spaces.Discrete):
            self._scheme = _OneChoice(space, names, own or {})
        else:
            self._scheme = _Choices(choices(space), joint=isinstance(kind, Categorical))
        buttons = ALSO if names and isinstance(space, spaces.Discrete) else {}
        self._also = {key: other for key, other in buttons.items() if key in self.used and other not in self.used}

    @property
    def used(self) -> frozenset[str]:
        return self._scheme.used

    @property
    def idle(self) -> bool:
        """True if there is an action for the time in which no key is pressed."""
        return self._scheme.idle

    def needs_key(self, pressed: Collection[str]) -> bool:
        """True if each action needs a key and none of them is pressed. Then do not step: `action` would give the first action."""
        return not self.idle and self.used.isdisjoint(pressed)

    def action(self, pressed: Collection[str]) -> np.ndarray | np.integer:
        """The action while these keys are pressed, as a policy gives it to to_env_action(): an index, the indices of several
        choices, or a float32 vector within the bounds. A mapping says how far each key is pressed, from 0 to 1."""
        strengths = dict(pressed) if isinstance(pressed, Mapping) else dict.fromkeys(pressed, 1.0)
        for key, other in self._also.items():
            if other in strengths:
                strengths.setdefault(key, strengths[other])
        return self._scheme.action(strengths)

    def lines(self) -> list[str]:
        """What the keys do, for a person: a line for each."""
        shown = [(" + ".join(map(self._spelled, chord)) or "no key", meaning) for chord, meaning in self._scheme.meanings()]
        width = max(len(keys) for keys, _ in shown) + 2
        return [f"{keys:<{width}}{meaning}" for keys, meaning in shown]

    def _spelled(self, key: str) -> str:
        return f"{key} or {self._also[key]}" if key in self._also else key


def keys_of(env: gymnasium.Env, family: EnvironmentFamily) -> Keys:
    """The keys of an environment of this family. Raises EnvError."""
    wrapped = env.action_space != env.unwrapped.action_space  # then its names and keys are those of other actions
    find = None if wrapped else getattr(env.unwrapped, "get_keys_to_action", None)
    try:
        own = find() if callable(find) else None
    except Exception:  # an environment may raise anything; ale-py raises AttributeError for continuous actions
        own = None
    return Keys(env.action_space, () if wrapped else family.action_names(env), own)


class _OneChoice:
    """The action with the most of the pressed keys."""

    def __init__(self, space: spaces.Discrete, names: Sequence[str], own: Mapping[Any, Any]) -> None:
        self._names = names
        self._chords = _chords(int(space.n), names, _own_chords(own, space))  # the keys of each action
        self.used: frozenset[str] = frozenset().union(*self._chords.values())
        self.idle = frozenset() in self._chords.values()

    def action(self, strengths: Mapping[str, float]) -> np.integer:
        held = _held(strengths)
        fitting = [(-len(chord), action) for action, chord in self._chords.items() if chord <= held]
        return np.int32(min(fitting)[1] if fitting else 0)

    def meanings(self) -> Iterator[tuple[Sequence[str], str]]:
        """Keys that are pressed together, and what they do. Combinations of keys that have lines of their own are left out."""
        alone = {key for chord in self._chords.values() if len(chord) == 1 for key in chord}
        for action, chord in sorted(self._chords.items(), key=lambda item: (len(item[1]) or 99, item[0])):
            if len(chord) < 2 or not chord <= alone:
                keys = sorted(chord, key=lambda key: (key not in ARROWS, key))
                yield keys, self._names[action] if action < len(self._names) else f"action {action}"


class _Choices:
    """A key for each value of each choice but the first, which means no key."""

    idle = True

    def __init__(self, sizes: tuple[int, ...], joint: bool) -> None:
        """`joint`: one index counts all combinations. Raises EnvError."""
        self._sizes, self._joint = sizes, joint
        values = [(choice, value) for choice, size in enumerate(sizes) for value in range(1, size)]
        pool: list[str] = [*ARROWS, "space", *LETTERS, *DIGITS]
        if len(values) > len(pool):
            raise EnvError(f"no keyboard has keys for {len(sizes)} choices with {sum(sizes):,} values")
        self._values = dict(zip(pool, values, strict=False))
        self.used = frozenset(self._values)

    def action(self, strengths: Mapping[str, float]) -> np.ndarray | np.integer:
        chosen = np.zeros(len(self._sizes), np.int32)
        for key in _held(strengths) & self.used:
            choice, value = self._values[key]
            chosen[choice] = max(chosen[choice], value)
        return np.int32(np.ravel_multi_index(tuple(chosen), self._sizes)) if self._joint else chosen

    def meanings(self) -> Iterator[tuple[Sequence[str], str]]:
        for key, (choice, value) in self._values.items():
            yield (key,), f"choice {choice} is {value}"
        yield (), "all choices are 0"


class _Numbers:
    """Each entry goes to a bound while its key is pressed."""

    idle = True

    def __init__(self, kind: Continuous, names: Sequence[str]) -> None:
        """Raises EnvError."""
        self._kind, self._names = kind, names
        self._entries = list(_entries(kind, names))
        self.used = frozenset(key for pair in self._entries for key in pair if key)

    def action(self, strengths: Mapping[str, float]) -> np.ndarray:
        action = np.array(_rest(self._kind), np.float32)
        for entry, (less, more) in enumerate(self._entries):
            way = strengths.get(more, 0.0) - strengths.get(less, 0.0)
            bound = self._kind.high[entry] if way > 0 else self._kind.low[entry]
            action[entry] += abs(way) * (bound - action[entry])
        return action

    def meanings(self) -> Iterator[tuple[Sequence[str], str]]:
        for entry, (less, more) in enumerate(self._entries):
            name = self._names[entry] if entry < len(self._names) else f"number {entry}"
            low, high = self._kind.low[entry], self._kind.high[entry]
            ends = f"{low:g}, {high:g}" if less and more else f"{high if more else low:g}"
            yield (", ".join(filter(None, (less, more))),), f"{name} {ends}"


def _held(strengths: Mapping[str, float]) -> set[str]:
    return {key for key, strength in strengths.items() if strength > 0.5}


def _chords(n: int, names: Sequence[str], own: dict[int, frozenset[str]]) -> dict[int, frozenset[str]]:
    """The keys of each of n actions: by the words of its name, by the environment's own keys, or one that is left. Raises
    EnvError for too many actions."""
    found: dict[int, frozenset[str]] = {}
    for action, name in enumerate(names[:n]):
        chord = _by_words(name)
        if chord is not None and chord not in found.values():
            found[action] = chord
    if len(found) < n and own:
        return own
    taken: frozenset[str] = frozenset().union(*found.values())
    pool: list[str] = [key for key in (*(ARROWS[:2] if n == 2 else DIGITS), *LETTERS) if key not in taken]
    rest = [action for action in range(n) if action not in found]
    if len(rest) > len(pool):
        raise EnvError(f"no keyboard has keys for {n:,} actions")
    for action in rest:
        key = str(action) if str(action) in pool else pool[0]
        pool.remove(key)
        found[action] = frozenset([key])
    return found


def _by_words(name: str) -> frozenset[str] | None:
    """The keys that the name of an action speaks of; None if it has no word that is known."""
    words = PARTS.findall(name.lower())
    known = {**WORDS, **BUTTONS} if all(word in WORDS or word in BUTTONS for word in words) else WORDS
    keys = [known[word] for word in words if word in known]
    return frozenset(filter(None, keys)) if keys else None


def _own_chords(own: Mapping[Any, Any] | None, space: spaces.Space) -> dict[int, frozenset[str]]:
    """The environment's own keys: for each action those of the fewest keys."""
    chords: dict[int, frozenset[str]] = {}
    assert isinstance(space, spaces.Discrete)
    for keys, action in (own or {}).items():
        names = [_key(key) for key in (keys if isinstance(keys, tuple | frozenset) else (keys,))]
        index = int(action) - int(space.start) if np.ndim(action) == 0 else -1
        if 0 <= index < space.n and all(names) and len(names) < len(chords.get(index, range(99))):
            chords[index] = frozenset(names)
    return chords


def _key(key: Any) -> str:
    """The name of a key that an environment gives as a code of pygame or as a letter; empty if it is none of ours."""
    name = key.lower() if isinstance(key, str) else OTHER_CODES.get(int(key)) or chr(key)
    return "space" if name == " " else name if name in (*OTHER_CODES.values(), *LETTERS, *DIGITS, "p", "r") else ""


def _rest(kind: Continuous) -> list[float]:
    """The entries while no key is pressed: 0, or the middle where 0 is outside the bounds."""
    return [0.0 if low <= 0 <= high else (low + high) / 2 for low, high in zip(kind.low, kind.high, strict=True)]


def _entries(kind: Continuous, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The keys (less, more) of each entry; one key where the entry rests at a bound. Raises EnvError for too many entries."""
    pairs, half = list(PAIRS), ""  # the other key of a pair of which one is taken
    for entry, (low, rest, high) in enumerate(zip(kind.low, _rest(kind), kind.high, strict=True)):
        one_sided = math.isclose(low, rest) or math.isclose(high, rest)
        if not pairs and not (one_sided and half):
            raise EnvError(f"no keyboard has keys for {len(kind.low)} numbers at once")
        vertical = entry < len(names) and (_by_words(names[entry]) or frozenset()) & {"up", "down"} and PAIRS[1] in pairs
        if not one_sided:
            yield pairs.pop(pairs.index(PAIRS[1]) if vertical else 0)
            continue
        if half:
            key, half = half, ""
        else:
            half, key = pairs.pop(0)
        yield ("", key) if math.isclose(low, rest) else (key, "")
