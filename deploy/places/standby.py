"""The processes that wait for a run, by the names that they will have in it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from deploy.config.run import RunConfig
from deploy.places.child import Child
from deploy.places.waiting import OnLine, Waiting, WaitingLearner
from deploy.process_spec import ProcessSpec
from transport.lifetime import WAIT
from transport.system import core_count


class Standby:
    """The learner, and once `fill` was called replay and actors of this machine."""

    def __init__(self, learner: WaitingLearner) -> None:
        self.run_mark, self.marks = learner.run_mark, 0  # of the learner's mark, and the number of the last one
        self._waiting: dict[str, Waiting] = {"learner": learner}

    def fill(self, config: RunConfig) -> None:
        """Starts what a run with this configuration will need, as far as it is known yet: not more actors than there are cores,
        because imports of more would delay what is waited for."""
        if config.replay.shards == 1:
            self._start("replay", "replay", 1)
        if not config.deploy.actor_python:
            actors = min(config.actors.count, config.deploy.local_actors, core_count())
            for index in range(actors):
                self._start(f"actor-{index}", "actors", config.actors.threads)

    def begin(self, spec: ProcessSpec, arguments: Sequence[str], on_line: OnLine) -> tuple[Child, str] | None:
        """The process of `spec`, if one waits for that, and its mark; the caller ends it."""
        waiting = self._waiting.pop(spec.name, None)
        child = waiting.begin(spec, arguments, on_line) if waiting is not None else None
        return None if waiting is None or child is None else (child, waiting.mark)

    def close(self) -> None:
        """Ends those that no run has begun with."""
        for waiting in self._waiting.values():
            waiting.close()
        self._waiting.clear()

    def _start(self, name: str, module: str, threads: int) -> None:
        self.marks += 1
        with suppress(OSError):  # then it is started when the run begins, and that says why it cannot be
            self._waiting[name] = Waiting(name, (module, WAIT), f"{self.run_mark}:{self.marks}", threads)
