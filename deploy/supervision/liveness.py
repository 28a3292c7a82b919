"""How long a process may be silent before it counts as hung.

Every main loop reports several times a second (transport/lifetime.py). A process is hung after a silence of

- `deploy.hang_seconds` for an actor at work, and for the inference process that acts for actors (it reports after each forward
  pass). The launch sets it to 3.5, or to four times the slowest reset or step of the pre-flight (an actor reports after each of
  its environments);
- five times as long, at least 60 s and at most `deploy.stall_seconds`, for an actor that has made its environments and has not
  reported since it was ready: their first resets, and the first step;
- `deploy.stall_seconds` for every other process (a learner's first update on a GPU and a checkpoint on a slow disk take long),
  and for an actor before its first report (it imports and makes its environments);
- twice the longest silence that a process of its role has ended by itself in this run, where that is more: a reset or step
  that took 20 s once may take 30 s the next time.

While the supervisor's own loop is delayed no silence grows: the cause (a suspended machine, a disk, Ctrl-Z) may have delayed the
others as well, and their reports have not been read. A hung process is killed, since a stopped one does not receive SIGTERM, and
replaced.
"""

from __future__ import annotations

from deploy.config.run import DeployConfig
from deploy.launch.defaults import LEAST_HANG_SECONDS

LEAST_FIRST_SECONDS = 60.0
FIRST_SLOWER = 5.0  # times deploy.hang_seconds: a simulator may load and compile in its first reset and step
DELAYED_SECONDS = 0.5  # a longer time between two turns of the supervisor, which makes ten a second, is a delay
ACTING = ("actor", "inference")  # roles
MARGIN = 2.0  # times the longest silence that ended by itself


class Patience:
    """The longest silences of each role that ended by themselves."""

    def __init__(self, config: DeployConfig) -> None:
        self._config = config
        self._longest: dict[str, float] = {}
        self._turned: float | None = None

    def limit_seconds(self, role: str, reported: bool, settled: bool) -> float:
        """How long a process of `role` may be silent; `reported`: it has reported at all; `settled`: since it was ready."""
        hang_seconds, stall_seconds = self._config.hang_seconds or LEAST_HANG_SECONDS, self._config.stall_seconds
        limit = stall_seconds
        if role in ACTING and settled:
            limit = hang_seconds
        elif role in ACTING and reported:
            limit = min(max(LEAST_FIRST_SECONDS, FIRST_SLOWER * hang_seconds), stall_seconds)
        return self.silence_seconds(role, limit)

    def silence_seconds(self, role: str, least: float) -> float:
        """The longest silence that is allowed for `role`, at least `least`."""
        return max(least, MARGIN * self._longest.get(role, 0.0))

    def record_silence(self, role: str, silent_seconds: float) -> None:
        """Remembers that a process of `role` was silent for `silent_seconds` and recovered."""
        self._longest[role] = max(self._longest.get(role, 0.0), silent_seconds)

    def delay_seconds(self, now: float) -> float:
        """The supervisor's own delay since the last call, which no silence includes. Called at each turn and at each report."""
        before, self._turned = self._turned, now
        passed = 0.0 if before is None else now - before
        return passed if passed > DELAYED_SECONDS else 0.0
