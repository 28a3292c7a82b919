"""The keys that a person presses where pictures are shown; their names are those of actors/envs/foreign/keys.py, and "escape",
"backspace" and "tab"."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from actors.envs.foreign.keys import Keys

SLOW_STEPS_PER_SECOND = 12.5  # up to this speed a short press is one step
REPEAT_SECONDS = 0.2  # of a held key, at such a speed


@dataclass
class _Press:
    since: float
    until: float  # of the clock; infinite while the key is held
    strength: float
    taken: bool = False


class Pressed:
    """Which keys count for a step: those that are held, and those that were pressed and released since the last step."""

    def __init__(self, keys: Keys, steps_per_second: float = math.inf, clock: Callable[[], float] = time.monotonic) -> None:
        """In slow steps a key that has counted for one step counts again only after REPEAT_SECONDS."""
        self.repeat_seconds = REPEAT_SECONDS if steps_per_second <= SLOW_STEPS_PER_SECOND else 0.0
        self.keys, self._clock = keys, clock
        self._presses: dict[str, _Press] = {}
        self._taps: list[str] = []

    def down(self, key: str, strength: float = 1.0, seconds: float = math.inf) -> None:
        """The key is held from now on, for `seconds` at most: in a terminal, where only its repetition says that it is held."""
        now = self._clock()
        known = self._presses.get(key)
        if known is not None and now < known.until:
            known.until, known.strength = now + seconds, strength
            return
        self._presses[key] = _Press(now, now + seconds, strength)
        self._taps.append(key)

    def up(self, key: str) -> None:
        if key in self._presses:
            self._presses[key].until = self._clock()

    def release(self) -> None:
        """No key is held any more."""
        self._presses.clear()

    def taps(self) -> list[str]:
        """The keys that have been pressed since the last call, in order."""
        taps, self._taps = self._taps, []
        return taps

    def action(self) -> np.ndarray | np.integer | None:
        """The action of the keys that count for this step; None if it needs a key and there is none: do not step then."""
        counting = self.take()
        return None if self.keys.needs_key(counting) else self.keys.action(counting)

    def take(self) -> dict[str, float]:
        """The keys that count for this step, and how far each is pressed, from 0 to 1."""
        now, counting = self._clock(), dict[str, float]()
        for key, press in list(self._presses.items()):
            held = now < press.until
            if not press.taken or (held and now - press.since >= self.repeat_seconds):
                counting[key] = press.strength
            press.taken = True
            if not held:
                del self._presses[key]
        return counting
