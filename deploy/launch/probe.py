"""The process that has torch before a run starts: it says what the learner will compute on, and describes the policy."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
import threading

import msgspec

from deploy.children import python_command
from deploy.config.errors import ConfigError
from deploy.config.run import RunConfig
from deploy.reporting.status import Document
from learner.config import LearnerConfig
from learner.inference.base import PolicyDescription
from transport.experience import ExperienceSpec, write_spec

SECONDS = 120.0  # for each answer


class Probe:
    """Importing torch takes seconds and 200 MB: in a child, and while the environment is being tried."""

    def __init__(self, learner: LearnerConfig) -> None:
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self._child = subprocess.Popen(
            python_command("learner.devices.probe", learner.device, learner.precision, str(learner.processes)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def __enter__(self) -> Probe:
        return self

    def __exit__(self, *raised: object) -> None:
        self._child.kill()
        self._child.communicate()
        self._errors.close()

    def device(self) -> Document:
        """What the learner will compute on. Raises ConfigError."""
        found = self._line("looking for the device", "name one with --device cpu")
        if "error" in found:
            raise ConfigError(found["error"])
        together = f", {found['processes']} processes" if found["processes"] > 1 else ""
        note = f"; {found['note']}" if found["note"] else ""
        print(f"learner on {found['device']} ({found['name']}){together}{note}", flush=True)
        return found

    def policy(self, config: RunConfig, spec: ExperienceSpec) -> PolicyDescription:
        """What the policy's network is made of. Raises ConfigError where it cannot be built."""
        question = {"algorithm": config.algorithm.flat(), "spec": write_spec(spec).decode()}
        assert self._child.stdin is not None
        with contextlib.suppress(OSError):  # it has ended: _line() says why
            self._child.stdin.write(json.dumps(question) + "\n")
            self._child.stdin.flush()
        found = self._line("building the network", "try another with --algorithm.network")
        if found["error"]:
            raise ConfigError(found["error"])
        return msgspec.convert(found["policy"], PolicyDescription)

    def _line(self, task: str, cure: str) -> Document:
        """The child's next line that is a JSON object: others are what a user's module prints. Raises ConfigError."""
        late = threading.Event()

        def give_up() -> None:
            late.set()
            self._child.kill()

        timer = threading.Timer(SECONDS, give_up)
        timer.start()
        try:
            assert self._child.stdout is not None
            for line in self._child.stdout:
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict):
                        return found
        finally:
            timer.cancel()
        status = self._child.wait()
        if late.is_set():
            raise ConfigError(f"{task} took more than {SECONDS:.0f} s; {cure}")
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or [f"exit {status}"])[-1]
        raise ConfigError(f"{task} failed: {last}")
