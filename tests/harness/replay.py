"""`python -m replay` without the rest of a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import msgspec
import tomli_w

from benchmarks.common.settings import write_settings
from replay.config import ReplayConfig
from tests.harness.waiting import PATIENCE_SECONDS, ROOT
from transport.experience import ExperienceSpec, write_spec
from transport.run_dir import RunDir


class ReplayProcess:
    """A replay server in a run's folder that holds just what it needs. It may be killed and started again."""

    def __init__(self, path: Path, spec: ExperienceSpec, config: ReplayConfig) -> None:
        """`path` is the run's folder. Nothing is started yet."""
        self.run_dir = RunDir(path)
        self.run_dir.create()
        document = {"seed": 0, "replay": msgspec.to_builtins(config)}
        self.run_dir.config.write_text(tomli_w.dumps(document))
        self.run_dir.spec.write_bytes(write_spec(spec))
        write_settings(self.run_dir, document)
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *failure: object) -> None:
        self.kill()
        self.run_dir.remove_sockets()

    def start(self, module: str = "replay", *arguments: str) -> None:
        """`module` is replay or something around it: tests.flow.dying_replay kills itself at a moment that is asked for."""
        command = [sys.executable, "-m", module, str(self.run_dir.path), *arguments]
        environment = os.environ | {"HEADRACE_SUPERVISOR_PID": str(os.getpid())}
        with self.run_dir.log("replay").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def bound(self) -> bool:
        """Whether the process that runs now has bound its socket."""
        try:
            found = json.loads((self.run_dir.path / "endpoints" / "replay.json").read_text())
        except (OSError, ValueError):
            return False
        return bool(found["pid"] == self.pid)

    @property
    def address(self) -> str:
        """Where it listens: the same address after each start, unless that is a TCP port."""
        return str(self.run_dir.endpoint("replay"))

    @property
    def text(self) -> str:
        """What it has printed, in all its incarnations."""
        return self.run_dir.log("replay").read_text(errors="replace")

    @property
    def dead(self) -> bool:
        return self.process is None or self.process.poll() is not None

    def stop(self) -> dict[str, float]:
        """Asks it to end in order; returns its last record."""
        assert self.process is not None
        self.process.terminate()
        assert self.process.wait(PATIENCE_SECONDS) == 0, self.text
        record: dict[str, float] = msgspec.json.decode(self.run_dir.metrics("replay").read_bytes().splitlines()[-1])
        return record

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None
