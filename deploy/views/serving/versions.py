"""Which version of the policy answers whom: new ones, a share of clients on trial, and the way back."""

from __future__ import annotations

import hashlib
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from deploy.views.serving.version import Version

KEPT = 4  # earlier versions, to go back to
REMEMBERED = 8  # refused versions that are shown
SAY_SECONDS = 10.0  # a learner may have new weights every second: then a few lines tell of them
HASHED = 1 << 64


class Versions:
    """The version that serves, perhaps one on trial, and earlier ones.

    At most one version is on trial; of those that arrive meanwhile the newest is next. After a rollback by hand new versions wait
    until they are promoted: what came before may come again.
    """

    def __init__(
        self,
        first: Version,
        share: float,
        promote_after: int,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`share` of clients that a new version answers at first; 1: all. `promote_after`: so many requests that it answered
        make it the version for all; 0: it waits for promote()."""
        self.current = first
        self.trial: Version | None = None
        self._share, self._promote_after, self._say, self._clock = share, promote_after, say, clock
        self._earlier: deque[Version] = deque(maxlen=KEPT)
        self._waiting: Version | None = None
        self._refused: deque[dict[str, Any]] = deque(maxlen=REMEMBERED)
        self._answered = 0  # by the version on trial
        self._said = -math.inf  # when a line last told of an adoption
        self.blocked = False

    def choose(self, client: str) -> Version:
        """The version that answers a client. On a trial the same clients have it until it ends; another trial has others."""
        if self.trial is None:
            return self.current
        place = hashlib.blake2b(f"{self.trial.name} {client}".encode(), digest_size=8).digest()
        return self.trial if int.from_bytes(place) < self._share * HASHED else self.current

    def keeps(self, version: Version) -> bool:
        """True if a session may go on with it in the middle of an episode."""
        return version in (self.current, self.trial) or version in self._earlier

    def offer(self, version: Version) -> None:
        """A new version, which has been tried."""
        if self.blocked or self.trial is not None:
            self._waiting = version
        elif self._share < 1:
            self.trial, self._answered = version, 0
            self._say(f"{version.name} is on trial: it answers {self._share:.3g} of all clients, {self.current.name} the others")
        else:
            self._adopt(version)

    def refuse(self, name: str, reason: str) -> None:
        """A version that was not taken."""
        self._refused.append({"version": name, "reason": reason, "time": round(self._clock(), 1)})
        self._say(f"refused {name}: {reason}; {self.current.name} goes on")

    def count(self, version: Version, requests: int) -> None:
        """It has answered them without fault."""
        if version is self.trial:
            self._answered += requests
            if self._promote_after and self._answered >= self._promote_after:
                self._say(f"{version.name} has answered {self._answered:,} requests without fault")
                self.promote()

    def fallback(self, version: Version) -> Version | None:
        """What answers where `version` cannot; None where there is no other."""
        if version is not self.current:
            return self.current
        return self._earlier[-1] if self._earlier else None

    def take_back(self, version: Version, reason: str) -> None:
        """Takes a version back that another has answered for."""
        if version is self.trial:
            self.trial = None
        elif version is self.current and self._earlier:
            self.current = self._earlier.pop()
        elif version in self._earlier:
            self._earlier.remove(version)
        else:
            return
        self.refuse(version.name, reason)
        self._next()

    def promote(self) -> str:
        """The version on trial answers all, or new versions are taken again after a rollback. Says what happened."""
        self.blocked = False
        if (trial := self.trial) is not None:
            self.trial = None
            self._adopt(trial)
        elif (waiting := self._waiting) is not None:
            self._waiting = None
            self._adopt(waiting)
        else:
            return f"{self.current.name} serves already, and new versions are taken"
        line = f"{self.current.name} serves"
        self._next()
        return line

    def rollback(self) -> str:
        """Ends a trial; without one, goes back to the version before, and holds new ones. Says what happened."""
        if self.trial is not None:
            ended, self.trial = self.trial, None
            line = f"the trial of {ended.name} has ended: {self.current.name} serves"
            self._say(line)
            self._next()
            return line
        if not self._earlier:
            return f"there is no version before {self.current.name}"
        left, self.current, self.blocked = self.current, self._earlier.pop(), True
        self._waiting = self._waiting or left
        line = f"back from {left.name} to {self.current.name}; new versions are blocked until they are promoted"
        self._say(line)
        return line

    def _adopt(self, version: Version) -> None:
        self._earlier.append(self.current)
        self.current = version
        if self._clock() - self._said >= SAY_SECONDS:
            self._said = self._clock()
            self._say(f"{version.name} serves")

    def _next(self) -> None:
        if self._waiting is not None and not self.blocked:
            waiting, self._waiting = self._waiting, None
            self.offer(waiting)

    def describe(self) -> dict[str, Any]:
        def brief(version: Version) -> dict[str, Any]:
            return {"policy_version": version.number, "name": version.name, **version.figures}

        return {
            "serving": brief(self.current),
            "trial": brief(self.trial) | {"share": self._share, "answered": self._answered} if self.trial else None,
            "waiting": brief(self._waiting) if self._waiting else None,
            "earlier": [brief(version) for version in reversed(self._earlier)],
            "refused": list(self._refused),
            "blocked": self.blocked,
        }
