"""This machine as a place: every process of the run is a child of the supervisor."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.children import THREAD_VARIABLES, child_environment, python_command
from deploy.places.base import OUT_OF_MEMORY
from deploy.places.child import Child
from deploy.places.memory import resident_bytes
from deploy.places.orphans import Orphans
from deploy.places.reaper import MARK_VARIABLE
from deploy.places.waiting import WaitingLearner
from deploy.process_spec import ProcessSpec
from transport.lifetime import PARENT_VARIABLE
from transport.messages.control import Assignment

MEMORY_SECONDS = 1.0  # between two measurements of the actors' memory
SIMULATING = ("actor", "evaluator")  # simulators leak, and these processes are replaced quickly
SIMULATING_SCORE = 300  # of 1000; added to their share of the memory when the kernel chooses a process to kill


class LocalPlace:
    """Starts children of this process. They and all that they start end with it."""

    def __init__(
        self,
        on_line: Callable[[str, str], None],
        actor_memory_bytes: int = 0,
        learner: WaitingLearner | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        """`on_line(name, line)` receives what processes print. An actor whose memory, with that of its children, is more than
        `actor_memory_bytes` is replaced; 0: no limit. `learner` becomes the run's first learner. `folders` are removed when
        this process has ended."""
        self._on_line, self._actor_memory_bytes, self._learner = on_line, actor_memory_bytes, learner
        self._orphans = Orphans(learner.run_mark if learner else "", folders)
        self._orphans.adopt()
        self._children: dict[ProcessSpec, Child] = {}
        self._next_memory_check = 0.0

    def begin(self, plan: ProcessSpec, assignment: Assignment | None, incarnation: int = 0) -> Child:
        """There is always room. Its reports carry `incarnation`, a new one if that is 0. Raises OSError."""
        if self._learner is not None and plan.role == "learner":
            waiting, self._learner = self._learner, None
            if (child := waiting.begin(plan, self._on_line)) is not None:
                return self._began(plan, child, waiting.mark)
        mark = self._orphans.mark()
        environment = child_environment(
            plan.python,
            **{PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark},
            **dict.fromkeys(THREAD_VARIABLES, str(plan.threads)),
        )
        command = python_command(plan.module, *plan.arguments, *options(assignment), python=plan.python)
        child = Child(plan.name, command, environment, self._on_line, plan.processes, incarnation=incarnation)
        if plan.role in SIMULATING:
            with contextlib.suppress(OSError):  # on other systems than Linux
                Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(SIMULATING_SCORE))
        return self._began(plan, child, mark)

    def turn(self) -> None:
        self._children = {plan: child for plan, child in self._children.items() if child.poll() is None}
        self._orphans.tend(child.pid for child in self._children.values())
        if self._actor_memory_bytes and time.monotonic() >= self._next_memory_check:
            self._next_memory_check = time.monotonic() + MEMORY_SECONDS
            self._check_memory()

    def close(self) -> None:
        for child in self._children.values():  # there are some only where the supervisor itself has failed
            child.kill()
        self._orphans.close()

    def _began(self, plan: ProcessSpec, child: Child, mark: str) -> Child:
        self._orphans.began(child.pid, mark)
        self._children[plan] = child
        return child

    def _check_memory(self) -> None:
        """Marks actors that use too much, before the kernel has to choose a process to kill."""
        members = self._orphans.members()
        for plan, child in self._children.items():
            used = resident_bytes(members.get(child.pid, [])) if plan.role == "actor" else 0
            if used > self._actor_memory_bytes:
                limit = f"{self._actor_memory_bytes / 1e6:,.0f} MB (actors.memory_bytes)"
                child.fault = f"{OUT_OF_MEMORY}: {used / 1e6:,.0f} MB of {limit}"


def options(assignment: Assignment | None) -> tuple[str, ...]:
    """The flags that give an actor its environments."""
    if assignment is None:
        return ()
    environments, first_seed = str(assignment.environments), str(assignment.first_seed)
    return ("--environments", environments, "--first-seed", first_seed, "--level", str(assignment.level))
