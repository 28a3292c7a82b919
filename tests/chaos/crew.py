"""A supervised run of light processes, seen from outside: started, struck, stopped, and what became of every step."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from actors.config import ActorsConfig, EnvConfig
from deploy import settings
from deploy.children import child_environment
from deploy.config.files import write_config
from deploy.config.run import DeployConfig, RunConfig
from tests.chaos.checker import Verdict, check
from tests.chaos.history import HISTORY_VARIABLE, read_life
from tests.chaos.simulator import CHILD_MARK, FAULTS_VARIABLE, Faults, command
from tests.chaos.streams import counting_replay, counting_spec
from tests.harness.run import Run
from tests.harness.waiting import PATIENCE_SECONDS, gone, shared_memory, wait_until
from transport.experience import write_spec
from transport.messages.control import Scale, Scaling
from transport.sockets.client import Client

SPEC = counting_spec()
NOTHING = {"processes": 0, "sockets": 0, "shared_memory": 0}  # left by a run


class Crew(Run):
    """One run in a folder of its own."""

    def __init__(self, folder: Path, actors: int = 4, memory_bytes: int = 0, least_samples: float = 0.0, **deploy: Any) -> None:
        """Writes its files; `deploy` is what its section of the configuration has, `least_samples` the lower end of the band.
        Nothing is started yet."""
        self.histories, self.faults = folder / "histories", folder / "faults"
        environment = child_environment(**{HISTORY_VARIABLE: str(self.histories), FAULTS_VARIABLE: str(self.faults)})
        super().__init__(folder, "crew", (), environment)
        self.command_line = [sys.executable, "-P", "-m", "tests.harness.host", "light", str(self.run_dir.path)]
        self.run_dir.create()
        self.histories.mkdir()
        with_defaults: dict[str, Any] = {"record_seconds": 0.5} | deploy
        config = RunConfig(
            seed=0,  # the streams of the counting environment are numbered from it
            env=EnvConfig(id="tests.chaos.simulator:vector"),
            actors=ActorsConfig(count=actors, envs_per_actor=1, memory_bytes=memory_bytes),
            replay=counting_replay(capacity=200_000, min_size=64, samples_per_insert_low=least_samples),
            deploy=DeployConfig(**with_defaults),
        )
        self.run_dir.config.write_bytes(write_config(config))
        self.run_dir.spec.write_bytes(write_spec(SPEC))
        settings.write(self.run_dir, config)

    def start(self) -> None:
        """The supervisor, another one when there was one: tests kill it."""
        self.supervisor = self.another()

    def wait(self, seconds: float) -> None:
        """Lets time pass; the run must not end meanwhile."""
        over = time.monotonic() + seconds
        self.until(lambda: time.monotonic() >= over, "a while", seconds + PATIENCE_SECONDS)

    def tell(self, **faults: Faults) -> None:
        """What goes wrong from now on, as the simulator takes it."""
        command(self.faults, **faults)

    def lines(self, *words: str) -> list[str]:
        """The supervisors' own lines with all of these words."""
        own = (line for line in self.text.splitlines() if line.startswith("supervisor"))
        return [line for line in own if all(word in line for word in words)]

    def actors(self) -> list[str]:
        """The actors at work."""
        found = self.status.get("processes", [])
        return [process["name"] for process in found if process["role"] == "actor" and process["state"] == "ready"]

    def acknowledged(self, name: str, pid: int) -> bool:
        """Whether replay has acknowledged anything to this life of an actor."""
        return any(_acknowledged(path) for path in self.histories.glob(f"{name}-{pid}-*.history"))

    def descendants(self) -> list[int]:
        """Everyone who was started, directly or not, by this run's processes and is alive, wherever he is now."""
        return [pid for pid in psutil.pids() if str(self.folder).encode() in _environ(pid) and not gone(pid)]

    def servers(self, pid: int) -> list[int]:
        """The servers that a process's simulator has started and that are alive."""
        mark = f"{CHILD_MARK}-{pid}"
        return [process.pid for process in psutil.process_iter() if mark in cmdline(process) and not gone(process.pid)]

    def start_servers(self) -> list[int]:
        """Every actor's simulator starts a server, every other one in a session of its own. Returns their pids."""
        names = [process["name"] for process in self.status["processes"] if process["role"] == "actor"]
        self.tell(**{name.replace("-", "_"): {"child": (True, "session")[index % 2]} for index, name in enumerate(names)})
        self.until(lambda: all(len(self.servers(self.pid(name))) == 1 for name in names), "every simulator has its server")
        return [pid for name in names for pid in self.servers(self.pid(name))]

    def zombies(self, pids: Container[int]) -> list[int]:
        """The children of the supervisor among `pids` that have ended and were not reaped."""
        assert self.supervisor is not None
        found = []
        for child in psutil.Process(self.supervisor.pid).children():
            with suppress(psutil.NoSuchProcess):  # it may be reaped between two looks
                if child.pid in pids and child.status() == psutil.STATUS_ZOMBIE:
                    found.append(child.pid)
        return found

    def kill_all(self) -> None:
        """The supervisor and everything that it has started, at once."""
        assert self.supervisor is not None
        for pid in [self.supervisor.pid, *self.descendants()]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.kill()

    def scale(self, actors: int) -> Scaling:
        """`headrace scale`."""
        address = self.run_dir.endpoint("supervisor")
        assert address is not None
        client = Client(address)
        try:
            client.send(Scale(actors))
            arrived = client.receive(30)
            assert arrived is not None and isinstance(arrived[0], Scaling)
            return arrived[0]
        finally:
            client.close()

    def down(self, exit_status: int = 0) -> float:
        """Ctrl-C, and how long the end took, in seconds. The run must end with this status."""
        began = time.monotonic()
        status = self.interrupt()
        took = time.monotonic() - began
        assert status == exit_status, self.text[-3000:]
        return took

    def left(self) -> dict[str, int]:
        """What a run that has ended has left: processes, sockets and shared memory."""
        with suppress(AssertionError):
            wait_until(lambda: not self.descendants(), 10, what="the reaper has ended, which the run does not wait for")
        sockets = sum(len(list(folder.iterdir())) for folder in self.run_dir.socket_folders if folder.is_dir())
        endpoints = len(list((self.run_dir.path / "endpoints").iterdir()))
        memory = shared_memory() - self.shared_memory
        return {"processes": len(self.descendants()), "sockets": sockets + endpoints, "shared_memory": len(memory)}

    def verdict(self) -> Verdict:
        """Of all steps of all lives; replay must have ended."""
        return check(self.run_dir.segments, SPEC, self.histories)

    def close(self) -> None:
        """Ends what is left, without order."""
        self.kill()
        for pid in self.descendants():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.run_dir.remove_sockets()


@contextmanager
def crew(folder: Path, **settings: Any) -> Iterator[Crew]:
    """A run that is at work, and gone after the block."""
    made = Crew(folder, **settings)
    try:
        made.up()
        yield made
    finally:
        made.close()


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def cmdline(process: psutil.Process) -> list[str]:
    """What a process was started with; nothing of one that has ended."""
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _acknowledged(path: Path) -> bool:
    try:
        return read_life(path).acknowledged > 0
    except ValueError:
        return False
