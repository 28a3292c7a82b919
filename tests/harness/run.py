"""A supervised run in a folder of its own, seen from outside: started, watched, stopped."""

from __future__ import annotations

import io
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import chdir, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import msgspec

from deploy import runs
from deploy.children import child_environment, python_command
from deploy.cli.main import main
from tests.harness.waiting import PATIENCE_SECONDS, shared_memory, wait_until
from transport.experience import ExperienceSpec, read_spec
from transport.run_dir import RunDir

OFTEN = ("--deploy.record-seconds", "0.5")  # what tests wait for is in the records


class Run:
    """One run and its supervisor, which `command` starts."""

    def __init__(self, folder: Path, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        """Nothing is started yet."""
        self.folder, self.command_line, self.environment = folder, list(command), environment
        self.run_dir = RunDir(folder / "runs" / name)
        self.terminal = folder / "terminal"  # what all supervisors of this run print
        self.supervisor: subprocess.Popen[bytes] | None = None
        self.shared_memory = shared_memory()

    def another(self) -> subprocess.Popen[bytes]:
        """A supervisor of this run."""
        with self.terminal.open("ab") as terminal:
            return subprocess.Popen(
                self.command_line, cwd=self.folder, env=self.environment, stdout=terminal, stderr=subprocess.STDOUT
            )

    def start(self) -> None:
        """The supervisor, unless there is one; it starts the others."""
        if self.supervisor is None:
            self.supervisor = self.another()

    def up(self) -> None:
        """The run with every process at work."""
        self.start()
        self.until(lambda: self.status.get("state") == "running", "every process at work")

    def until(self, true: Any, what: str, seconds: float = PATIENCE_SECONDS) -> None:
        """Waits for a predicate; gives up at once when the run has ended."""

        def found() -> bool:
            assert self.supervisor is not None and self.supervisor.poll() is None, f"the run has ended:\n{self.text[-4000:]}"
            return bool(true())

        wait_until(found, seconds, what)

    @property
    def text(self) -> str:
        """All that the supervisors of this run have printed."""
        return self.terminal.read_text()

    @property
    def status(self) -> dict[str, Any]:
        """What this incarnation of the supervisor last wrote."""
        found = runs.read_status(self.run_dir) or {}
        return found if self.supervisor is not None and found.get("pid") == self.supervisor.pid else {}

    def process(self, name: str) -> dict[str, Any]:
        """A process's line in the status."""
        return next((process for process in self.status.get("processes", []) if process["name"] == name), {})

    def pids(self) -> dict[str, int]:
        """The processes of the run by name."""
        return {process["name"]: process["pid"] for process in self.status["processes"]}

    def pid(self, name: str) -> int:
        """The number that a process has now."""
        return int(self.process(name)["pid"])

    def at_work(self) -> dict[str, str]:
        """The host of each actor that is ready; without actors on the run's own machine."""
        actors = [each for each in self.status.get("processes", []) if each["role"] == "actor" and each["state"] == "ready"]
        return {each["name"]: each["host"] for each in actors if each["host"]}

    def collected(self, name: str) -> bool:
        """Whether the records of an actor have come, with steps that replay has acknowledged."""
        return any(record.get("acknowledged_steps", 0) > 0 for record in self.records(name))

    def records(self, name: str) -> list[dict[str, float]]:
        """All that a process has measured, in all its incarnations."""
        found = []
        with suppress(OSError):
            for line in self.run_dir.metrics(name).read_bytes().splitlines():
                with suppress(msgspec.DecodeError):  # being written, or left by a process that was killed
                    found.append(msgspec.json.decode(line))
        return found

    def versions(self, name: str) -> list[float]:
        """The policy versions of an actor's records."""
        return [record["policy_version"] for record in self.records(name) if "policy_version" in record]

    @property
    def spec(self) -> ExperienceSpec:
        """The experience that the run records."""
        return read_spec(self.run_dir.spec.read_bytes())

    def interrupt(self, number: signal.Signals = signal.SIGINT) -> int:
        """Ctrl-C, and the exit status."""
        assert self.supervisor is not None
        self.supervisor.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """The exit status, once the run has ended."""
        assert self.supervisor is not None
        return self.supervisor.wait(PATIENCE_SECONDS)

    def kill(self) -> None:
        """Ends the supervisor by SIGKILL, if there is one."""
        if self.supervisor is not None:
            self.supervisor.kill()
            self.supervisor.wait()
            self.supervisor = None

    def close(self) -> None:
        """Ends what is left, without order."""
        self.kill()


class Stubs(Run):
    """A supervisor over processes that stand in for every role."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        """`arguments`: those of `tests.harness.host stubs RUN_DIR`."""
        super().__init__(folder, "mine", (), child_environment())
        self.run_dir.path.mkdir(parents=True)
        command = [sys.executable, "-P", "-m", "tests.harness.host", "stubs"]
        self.command_line = [*command, str(self.run_dir.path), *arguments]

    def close(self) -> None:
        super().close()
        self.run_dir.remove_sockets()


class World(Run):
    """A working directory with one run of `headrace up` in it, as a user starts it."""

    def __init__(self, folder: Path, env: str, settings: Sequence[str]) -> None:
        super().__init__(folder, "mine", (), child_environment())
        self.env, self.settings, self.actors = env, settings, 2
        self.prefix: list[str] = []  # a command that starts `headrace up`, if not this process itself

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace …` in this process, which has imported it: a new process would compute for half a second before it begins."""
        out, err = io.StringIO(), io.StringIO()
        with chdir(self.folder), redirect_stdout(out), redirect_stderr(err):
            status = main(arguments)
        return subprocess.CompletedProcess(arguments, status, out.getvalue(), err.getvalue())

    def command_apart(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`headrace …` as a process of its own, until it ends."""
        command = python_command("deploy.cli.main", *arguments)
        return subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=240)

    def another(self) -> subprocess.Popen[bytes]:
        actors = ["--actors", str(self.actors)] if self.actors else []  # settings may say otherwise
        up = python_command("deploy.cli.main", "up", "--env", self.env, "--run", "mine", *actors, *OFTEN, *self.settings)
        self.command_line = [*self.prefix, *up]
        return super().another()

    def stop(self) -> int:
        """Ctrl-C."""
        try:
            return self.interrupt()
        finally:
            self.close()
