"""A run of `headrace up` in a folder of its own, for tests that use it as a user would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil

from deploy.children import child_environment, python_command
from tests.flow.fleet import wait_until
from transport.experience import ExperienceSpec, read_spec
from transport.run_dir import RunDir

SHARED_MEMORY = Path("/dev/shm")
PATIENCE_SECONDS = 60


def shared_memory() -> set[str]:
    return set(os.listdir(SHARED_MEMORY)) if SHARED_MEMORY.is_dir() else set()


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


class World:
    """A working directory with one run in it."""

    def __init__(self, folder: Path, env: str, settings: Sequence[str]) -> None:
        """Nothing is started yet."""
        self.folder, self.env, self.settings = folder, env, settings
        self.run_dir = RunDir(folder / "runs" / "mine")
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.shared_memory = shared_memory()
        self.environment = child_environment()
        self.prefix: list[str] = []  # a command that starts `headrace up`, if not this process itself

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace …`, until it ends."""
        command = python_command("deploy.cli.main", *arguments)
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=90)

    def start(self) -> None:
        """`headrace up`, unless it is up."""
        if self.supervisor is not None:
            return
        up = python_command("deploy.cli.main", "up", "--env", self.env, "--actors", "2", "--run", "mine", *self.settings)
        with (self.folder / "terminal").open("ab") as terminal:
            command = [*self.prefix, *up]
            self.supervisor = subprocess.Popen(command, cwd=self.folder, env=self.environment, stdout=terminal, stderr=terminal)

    def up(self) -> None:
        """The run with every process at work."""
        self.start()
        self.until(lambda: self.status.get("state") == "running", "every process ready")

    def until(self, true: Any, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for a predicate, and gives up at once when the run has ended."""

        def found() -> bool:
            ended = self.supervisor is not None and self.supervisor.poll() is not None
            assert not ended, f"the run has ended:\n{(self.folder / 'terminal').read_text()[-4000:]}"
            return bool(true())

        wait_until(found, seconds, what)

    @property
    def status(self) -> dict[str, Any]:
        """What this life of the supervisor last wrote."""
        try:
            found: dict[str, Any] = json.loads(self.run_dir.status.read_text())
        except (OSError, ValueError):
            return {}
        return found if self.supervisor is not None and found["pid"] == self.supervisor.pid else {}

    def process(self, name: str) -> dict[str, Any]:
        """A process's line in the status."""
        return next((process for process in self.status.get("processes", []) if process["name"] == name), {})

    def pids(self) -> dict[str, int]:
        """The processes of the run by name."""
        return {process["name"]: process["pid"] for process in self.status["processes"]}

    def records(self, name: str) -> list[dict[str, float]]:
        """All that a process has measured, in all its lives."""
        try:
            return [msgspec.json.decode(line) for line in self.run_dir.metrics(name).read_bytes().splitlines()]
        except OSError:
            return []

    def versions(self, name: str) -> list[float]:
        """The policy versions of an actor's records."""
        return [record["policy_version"] for record in self.records(name) if "policy_version" in record]

    @property
    def spec(self) -> ExperienceSpec:
        """The experience that the run records."""
        return read_spec(self.run_dir.spec.read_bytes())

    def stop(self) -> int:
        """Ctrl-C."""
        assert self.supervisor is not None
        self.supervisor.send_signal(signal.SIGINT)
        try:
            return self.supervisor.wait(30)
        finally:
            self.close()

    def close(self) -> None:
        """Ends what is left, without order."""
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor = None
