"""A person chooses the actions of an actor's first environment. The policy goes on choosing those of the others."""

from __future__ import annotations

import time

import numpy as np

from actors.collector import Collector
from actors.errors import EnvError
from learner.weights.follow import WeightsInUse
from transport.experience import Chunk
from transport.lifetime import Lifetime
from transport.messages.control import STEER_SECONDS, Steer
from transport.messages.fields import MOST_KEY_LINES, MOST_PIXELS, WORDS_LETTERS, printable
from transport.text import say

STEPS_PER_SECOND, MOST_STEPS_PER_SECOND = 15.0, 30.0  # if the environment names no speed; at most
LISTEN_SECONDS = 0.005  # between two checks for a message of the person


class Steering:
    """Begins when a person takes over. Ends when they hand back, or send nothing for STEER_SECONDS."""

    def __init__(self, collector: Collector, lifetime: Lifetime, algorithm: str) -> None:
        """Raises EnvError, with a message of one line, if the actor cannot be steered."""
        if collector.spec.unit == "rollouts":
            raise EnvError(
                f"{algorithm} learns from what its own policy has just done: a person can steer where replay keeps experience, "
                "as with dqn, r2d2 or sac"
            )
        self._collector, self._lifetime = collector, lifetime
        self._keys = collector.env.keys()
        lines = [*self._keys.lines()[: MOST_KEY_LINES - 1], *(() if self._keys.idle else ("no key: it waits",))]
        self.lines = tuple(printable(line)[:WORDS_LETTERS] for line in lines)
        self._pause_seconds = 1 / min(collector.env.speed or STEPS_PER_SECOND, MOST_STEPS_PER_SECOND)
        self._due = self._heard = time.monotonic()  # times of the next step, and of the person's newest message or its answer
        self._number = -1  # of the last message that was answered
        self.steps = 0
        say(f"a person has taken over its first environment, at {1 / self._pause_seconds:.3g} steps/s")

    def step(self, follower: WeightsInUse) -> list[Chunk] | None:
        """Waits until a step is due, and steps with the keys that are held then. Returns None if the person has left.

        If each action needs a key, only a message with such a key leads to a step, so that the person has time to think."""
        steer = self._wait()
        if steer is None:
            return None
        if self._keys.needs_key(steer.keys):
            return []
        chunks = self._collector.step(follower, self._keys.action(steer.keys))
        self.steps += 1
        self._due = max(self._due + self._pause_seconds, time.monotonic())
        return chunks

    def picture(self) -> np.ndarray | None:
        """[H, W, 3] RGB uint8 of the environment, at most MOST_PIXELS high and wide; None if it draws none."""
        if (found := self._collector.env.picture()) is None:
            return None
        every = -(-max(found.shape) // MOST_PIXELS)
        return np.ascontiguousarray(found[::every, ::every])

    def unanswered(self) -> int | None:
        """The number of the person's newest message, which the caller answers; None if it has been answered."""
        steer = self._lifetime.steer
        if steer is None or steer.number == self._number:
            return None
        self._number, self._heard = steer.number, time.monotonic()
        return steer.number

    def _wait(self) -> Steer | None:
        lifetime = self._lifetime
        while True:
            lifetime.beat()
            lifetime.listen()
            steer, now = lifetime.steer, time.monotonic()
            if steer is None or steer.ends or lifetime.stopping:
                say(f"a person has handed back, after {self.steps:,} steps")
                return None
            new = steer.number != self._number
            if new:
                self._heard = now
            elif now - self._heard > STEER_SECONDS:
                say(f"no sign of the person for {STEER_SECONDS:.0f} s: it goes on by itself, after {self.steps:,} of their steps")
                return None
            if now >= self._due and (new or self._keys.idle):
                return steer
            time.sleep(min(max(self._due - now, 0.001), LISTEN_SECONDS))
