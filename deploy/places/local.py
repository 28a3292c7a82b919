"""This machine as a place: every process of the run is a child of the supervisor."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path

from deploy.children import child_environment, python_command
from deploy.places.base import OUT_OF_MEMORY
from deploy.places.child import Child
from deploy.places.memory import resident_bytes
from deploy.places.orphans import Orphans
from deploy.places.reaper import MARK_VARIABLE
from deploy.supervision.topology import Plan
from transport.lifetime import PARENT_VARIABLE
from transport.messages import Assignment

MEMORY_SECONDS = 1.0  # between two looks at what actors hold
SIMULATING = ("actor", "evaluator")  # a simulator's code leaks more than ours, and these are soon replaced
FIRST_TO_GO = 300  # of 1000: what the kernel adds to their share of the memory when it has to choose what to kill
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class LocalPlace:
    """Children of this process, and whatever they start; nothing outlives it."""

    def __init__(self, on_line: Callable[[str, str], None], actor_memory_bytes: int = 0) -> None:
        """`on_line(name, line)` gets what processes print. An actor that holds more than `actor_memory_bytes`, its own processes
        included, is at fault; 0: no limit."""
        self._on_line, self._actor_memory_bytes = on_line, actor_memory_bytes
        self._orphans = Orphans()
        self._orphans.adopt()
        self._children: dict[Plan, Child] = {}
        self._next_look = 0.0

    def begin(self, plan: Plan, assignment: Assignment | None) -> Child:
        """There is always room. Raises OSError."""
        mark = self._orphans.mark()
        environment = child_environment(
            plan.python,
            **{PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark},
            **dict.fromkeys(THREAD_VARIABLES, str(plan.threads)),
        )
        command = python_command(plan.module, *plan.arguments, *options(assignment), python=plan.python)
        child = Child(plan.name, command, environment, self._on_line, plan.processes)
        if plan.role in SIMULATING:
            with contextlib.suppress(OSError):  # elsewhere than on Linux, say
                Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(FIRST_TO_GO))
        self._orphans.began(child.pid, mark)
        self._children[plan] = child
        return child

    def turn(self) -> None:
        self._children = {plan: child for plan, child in self._children.items() if child.poll() is None}
        self._orphans.tend(child.pid for child in self._children.values())
        if self._actor_memory_bytes and time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + MEMORY_SECONDS
            self._check_memory()

    def close(self) -> None:
        for child in self._children.values():  # there are none, unless the supervisor itself has failed
            child.kill()
        self._orphans.close()

    def _check_memory(self) -> None:
        """Actors that hold too much are replaced before the kernel has to choose what to kill."""
        members = self._orphans.members()
        for plan, child in self._children.items():
            held = resident_bytes(members.get(child.pid, [])) if plan.role == "actor" else 0
            if held > self._actor_memory_bytes:
                limit = f"{self._actor_memory_bytes / 1e6:,.0f} MB (actors.memory_bytes)"
                child.fault = f"{OUT_OF_MEMORY}: {held / 1e6:,.0f} MB of {limit}"


def options(assignment: Assignment | None) -> tuple[str, ...]:
    """The flags by which an actor is given its environments."""
    if assignment is None:
        return ()
    environments, first_seed = str(assignment.environments), str(assignment.first_seed)
    return ("--environments", environments, "--first-seed", first_seed, "--level", str(assignment.level))
