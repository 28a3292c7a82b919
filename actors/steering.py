"""A person chooses the actions of an actor's first environment, while the others go on under the policy."""

from __future__ import annotations

import time

from actors.collector import Collector
from actors.errors import EnvError
from learner.weights.follow import WeightsInUse
from transport.experience import Chunk
from transport.lifetime import Lifetime
from transport.messages.control import STEER_SECONDS, Steer
from transport.messages.fields import MOST_KEY_LINES, WORDS_LETTERS, printable
from transport.text import say

STEPS_PER_SECOND, MOST_STEPS_PER_SECOND = 15.0, 30.0  # where the environment names no speed; that a person can follow
LISTEN_SECONDS = 0.005  # between two looks for the person's keys


class Wheel:
    """From the moment that a person takes over to the one that nobody steers any more."""

    def __init__(self, collector: Collector, lifetime: Lifetime, algorithm: str) -> None:
        """Raises EnvError, in one line, where nobody can steer."""
        if collector.spec.unit == "rollouts":
            raise EnvError(
                f"{algorithm} learns from what its own policy has just done: a person can steer where replay keeps experience, "
                "as with dqn, r2d2 or sac"
            )
        self._collector, self._lifetime = collector, lifetime
        self._keys = collector.env.keys()
        self.lines = tuple(printable(line)[:WORDS_LETTERS] for line in self._keys.lines()[:MOST_KEY_LINES])
        self._pause_seconds = 1 / min(collector.env.speed or STEPS_PER_SECOND, MOST_STEPS_PER_SECOND)
        self._due = self._alive = time.monotonic()  # the next step; the last message of the person, or answer to it
        self._number = -1  # of the message that was answered last
        self.steps = 0
        say(f"a person has taken over its first environment, at {1 / self._pause_seconds:.3g} steps/s")

    def turn(self, follower: WeightsInUse) -> list[Chunk] | None:
        """Waits until a step is due, and takes it by the keys that are held then; None where the person has left."""
        steer = self._wait()
        if steer is None:
            return None
        chunks = self._collector.step(follower, self._keys.action(steer.keys))
        self.steps += 1
        self._due = max(self._due + self._pause_seconds, time.monotonic())
        return chunks

    def unanswered(self) -> int | None:
        """The number of the person's message if it is new; the caller answers it."""
        steer = self._lifetime.steer
        if steer is None or steer.number == self._number:
            return None
        self._number, self._alive = steer.number, time.monotonic()
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
            if steer.number != self._number:
                self._alive = now
            elif now - self._alive > STEER_SECONDS:
                say(f"no sign of the person for {STEER_SECONDS:.0f} s: it goes on by itself, after {self.steps:,} of their steps")
                return None
            if now >= self._due:
                return steer
            time.sleep(min(self._due - now, LISTEN_SECONDS))
