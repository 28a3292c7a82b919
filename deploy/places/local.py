"""This machine as a place: every process of the run is a child of the supervisor."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from deploy.children import THREAD_VARIABLES, child_environment, python_command
from deploy.places.base import OUT_OF_MEMORY, Place, Process
from deploy.places.child import Child
from deploy.places.memory import resident_bytes
from deploy.places.orphans import Orphans
from deploy.places.reaper import MARK_VARIABLE
from deploy.places.remote.hosts import HostPlaces
from deploy.places.standby import Standby
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
        standby: Standby | None = None,
        folders: Sequence[Path] = (),
    ) -> None:
        """`on_line(name, line)` receives what processes print. An actor whose memory, with that of its children, is more than
        `actor_memory_bytes` is replaced; 0: no limit. `standby` becomes the run's first processes. `folders` are removed
        when this process has ended."""
        self._on_line, self._actor_memory_bytes, self._standby = on_line, actor_memory_bytes, standby
        self._begun = 0  # since the last turn
        self._orphans = Orphans(standby.run_mark, standby.marks, folders) if standby else Orphans(folders=folders)
        self._orphans.adopt()
        self._children: dict[ProcessSpec, Child] = {}
        self._next_memory_check = 0.0

    def begin(self, spec: ProcessSpec, assignment: Assignment | None, incarnation: int = 0) -> Child:
        """There is always room. Its reports carry `incarnation`, a new one if that is 0. Raises OSError."""
        arguments = (*spec.arguments, *options(assignment))
        if self._standby is not None and (found := self._standby.begin(spec, arguments, self._on_line)) is not None:
            return self._began(spec, *found)
        mark = self._orphans.mark()
        environment = child_environment(
            spec.python,
            **{PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark},
            **dict.fromkeys(THREAD_VARIABLES, str(spec.threads)),
        )
        command = python_command(spec.module, *arguments, python=spec.python)
        child = Child(spec.name, command, environment, self._on_line, spec.processes, incarnation=incarnation, yields=True)
        return self._began(spec, child, mark)

    def turn(self) -> None:
        if self._standby is not None and not self._begun:  # the run has all that it wanted
            self._standby.close()
            self._standby = None
        self._begun = 0
        self._children = {spec: child for spec, child in self._children.items() if child.poll() is None}
        self._orphans.tend(child.pid for child in self._children.values())
        if self._actor_memory_bytes and time.monotonic() >= self._next_memory_check:
            self._next_memory_check = time.monotonic() + MEMORY_SECONDS
            self._check_memory()

    def close(self) -> None:
        for child in self._children.values():  # there are some only where the supervisor itself has failed
            child.kill()
        if self._standby is not None:
            self._standby.close()
        self._orphans.close()

    def _began(self, spec: ProcessSpec, child: Child, mark: str) -> Child:
        self._begun += 1
        if spec.role in SIMULATING:
            with contextlib.suppress(OSError):  # on other systems than Linux
                Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(SIMULATING_SCORE))
        self._orphans.began(child.pid, mark)
        self._children[spec] = child
        return child

    def _check_memory(self) -> None:
        """Marks actors that use too much, before the kernel has to choose a process to kill."""
        members = self._orphans.members()
        for spec, child in self._children.items():
            used = resident_bytes(members.get(child.pid, [])) if spec.role == "actor" else 0
            if used > self._actor_memory_bytes:
                limit = f"{self._actor_memory_bytes / 1e6:,.0f} MB (actors.memory_bytes)"
                child.fault = f"{OUT_OF_MEMORY}: {used / 1e6:,.0f} MB of {limit}"


def options(assignment: Assignment | None) -> tuple[str, ...]:
    """The flags that give an actor its environments."""
    if assignment is None:
        return ()
    environments, first_seed = str(assignment.environments), str(assignment.first_seed)
    return ("--environments", environments, "--first-seed", first_seed, "--level", str(assignment.level))


class LocalOrHost:
    """Starts an actor on a host that has room, otherwise here while fewer than `local_actors` run here, otherwise not yet. All
    other processes run here."""

    def __init__(self, local: Place, hosts: HostPlaces, local_actors: int, reclaim: Callable[[str], None]) -> None:
        """`reclaim(name)` gives an actor's name on the list of keys to a process of this machine; it may raise OSError."""
        self._local, self._hosts, self._local_actors, self._reclaim = local, hosts, local_actors, reclaim
        self._here: dict[str, Process] = {}  # actors, by name

    def begin(self, spec: ProcessSpec, assignment: Assignment | None) -> Process | None:
        if spec.role != "actor":
            return self._local.begin(spec, assignment)
        if (found := self._hosts.begin(spec, assignment)) is not None:
            return found
        self._here = {name: process for name, process in self._here.items() if process.poll() is None}
        if self._hosts.expects(spec.name) or len(self._here) >= self._local_actors:
            return None
        self._reclaim(spec.name)
        if (process := self._local.begin(spec, assignment)) is not None:
            self._here[spec.name] = process
        return process

    def turn(self) -> None:
        self._local.turn()
        self._hosts.turn()

    def close(self) -> None:
        self._hosts.close()
        self._local.close()
