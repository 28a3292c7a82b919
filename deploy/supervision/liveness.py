"""How long a process may be silent before it is taken to hang.

Every main loop sends word some times a second (transport/lifetime.py). A process hangs that has sent none for

- `deploy.hang_seconds`, if it is an actor at work; settled at launch: 3.5, or four times the slowest reset or step that the
  pre-flight saw (an actor beats after each of its environments);
- `deploy.stall_seconds`, if it is anyone else (a learner's first update on a GPU, a checkpoint on a slow disk), or an actor
  that has not sent a second word since it was ready (a simulator's first step may be slow);
- twice the longest silence that a process of its role has broken by itself in this run, where that is more: what is slow is
  not dead, and a reset or step that took 20 s once may take 30 s the next time.

While the supervisor's own loop is held up nobody's silence grows: what held it up (a suspended machine, a disk, Ctrl-Z) may
have held up the others, and what they sent meanwhile has not been read. Who hangs is killed, since a stopped process does not
hear SIGTERM, and replaced.
"""

from __future__ import annotations

from deploy.config.deploy import DeployConfig

LEAST_HANG_SECONDS = 3.5
SLOWER = 4.0  # than the slowest call in the pre-flight, which sees few, may another be
HELD_UP_SECONDS = 0.5  # between two turns of the supervisor, which takes ten a second
MARGIN = 2.0  # of the longest silence that was none of death


def settled_hang_seconds(slowest_seconds: float) -> float:
    """deploy.hang_seconds of a run whose slowest reset or step in the pre-flight took so long."""
    return round(max(LEAST_HANG_SECONDS, SLOWER * slowest_seconds), 1)


class Patience:
    """What has been learned of how long processes of each role are silent when all is well."""

    def __init__(self, config: DeployConfig) -> None:
        """Knows nothing yet."""
        self._config = config
        self._longest: dict[str, float] = {}
        self._turned: float | None = None

    def limit_seconds(self, role: str, settled: bool) -> float:
        """How long one of `role` may be silent; `settled` once it has been at work for more than a word."""
        hang_seconds = self._config.hang_seconds or LEAST_HANG_SECONDS
        least = hang_seconds if role == "actor" and settled else self._config.stall_seconds
        return max(least, MARGIN * self._longest.get(role, 0.0))

    def broken(self, role: str, silent_seconds: float) -> None:
        """One of `role` has sent word, so long after the one before."""
        self._longest[role] = max(self._longest.get(role, 0.0), silent_seconds)

    def held_up_seconds(self, now: float) -> float:
        """Called at each turn of the supervisor and at each word: how much of the time since then is nobody's silence."""
        before, self._turned = self._turned, now
        passed = 0.0 if before is None else now - before
        return passed if passed > HELD_UP_SECONDS else 0.0
