"""How long a process may be silent before it counts as hung.

Every main loop reports several times a second (transport/lifetime.py). A process is hung after a silence of

- `deploy.hang_seconds` for an actor at work. The launch sets it to 3.5, or to four times the slowest reset or step of the
  pre-flight (an actor reports after each of its environments);
- `deploy.stall_seconds` for every other process (a learner's first update on a GPU and a checkpoint on a slow disk take long),
  and for an actor that has not reported a second time since it was ready (a simulator's first step may be slow);
- twice the longest silence that a process of its role has ended by itself in this run, where that is more: a reset or step
  that took 20 s once may take 30 s the next time.

While the supervisor's own loop is delayed no silence grows: the cause (a suspended machine, a disk, Ctrl-Z) may have delayed the
others as well, and their reports have not been read. A hung process is killed, since a stopped one does not receive SIGTERM, and
replaced.
"""

from __future__ import annotations

from deploy.config.run import DeployConfig

LEAST_HANG_SECONDS = 3.5
SLOWER = 4.0  # times the slowest call of the pre-flight, which makes few calls
DELAYED_SECONDS = 0.5  # a longer time between two turns of the supervisor, which makes ten a second, is a delay
MARGIN = 2.0  # times the longest silence that ended by itself


def settled_hang_seconds(slowest_seconds: float) -> float:
    """deploy.hang_seconds of a run whose slowest reset or step in the pre-flight took `slowest_seconds`."""
    return round(max(LEAST_HANG_SECONDS, SLOWER * slowest_seconds), 1)


class Patience:
    """How long processes of each role are silent while they work."""

    def __init__(self, config: DeployConfig) -> None:
        self._config = config
        self._longest: dict[str, float] = {}
        self._turned: float | None = None

    def limit_seconds(self, role: str, settled: bool) -> float:
        """How long a process of `role` may be silent; `settled`: it has reported since it was ready."""
        hang_seconds = self._config.hang_seconds or LEAST_HANG_SECONDS
        return self.silence_seconds(role, hang_seconds if role == "actor" and settled else self._config.stall_seconds)

    def silence_seconds(self, role: str, least: float) -> float:
        """How long a silence of `role` may be at work: at least `least`."""
        return max(least, MARGIN * self._longest.get(role, 0.0))

    def broken(self, role: str, silent_seconds: float) -> None:
        """A process of `role` has reported, so long after its report before."""
        self._longest[role] = max(self._longest.get(role, 0.0), silent_seconds)

    def delay_seconds(self, now: float) -> float:
        """The supervisor's own delay since the last call, which no silence includes. Called at each turn and at each report."""
        before, self._turned = self._turned, now
        passed = 0.0 if before is None else now - before
        return passed if passed > DELAYED_SECONDS else 0.0
