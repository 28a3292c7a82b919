"""Runs a peer's script by the peer's Python, and reads the figures it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.children import ROOT

PEERS = ("reverb", "reverb-trajectory", "cpprb", "torchrl")
PATIENCE_SECONDS = 1800.0


class PeerFailed(Exception):
    """A peer that cannot be measured: the message says why, and what to do."""


class Peer:
    """One peer. `asked` goes to its script; `version`, `settings` and `checked` are what the script says of itself."""

    def __init__(self, name: str, python: str, asked: dict[str, Any], script: str = "") -> None:
        """`script`: a module of benchmarks.peers, where it is not the package's usual one. Raises PeerFailed where the Python is
        not one, or has not got the peer."""
        self.name, self.version, self.checked = name, "", 0
        self.settings: dict[str, Any] = {}
        self._python, self._package = python, name.partition("-")[0]
        self._module = f"benchmarks.peers.{script or self._package + '_peer'}"
        self._asked = asked | {"peer": name}
        if not Path(python).is_file():
            raise PeerFailed(f"--peer-python: there is no {python}")
        if self._start(["-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({self._package!r}) is None)"]).returncode:
            raise PeerFailed(f"--peer-python: {python} has no {self._package}; benchmarks/README.md says how to install it")

    def run(self, more: dict[str, Any] | None = None) -> list[dict[str, Any]]:
        """Every case of the peer's once: [{"case", "metric", "unit", "value"}]; asked for `more` besides. Raises PeerFailed."""
        done = self._start(self._script(more or {}))
        return self._read(done.returncode, done.stdout, done.stderr)

    def begin(self, more: dict[str, Any], errors: Path) -> subprocess.Popen[str]:
        """Its script, with `more` in its request; it may be ended before `finish`, and its errors go to a file."""
        with errors.open("w") as file:
            return subprocess.Popen(
                [self._python, *self._script(more)], stdout=subprocess.PIPE, stderr=file, text=True, env=self._environment()
            )

    def finish(self, process: subprocess.Popen[str], errors: Path, patience_seconds: float) -> list[dict[str, Any]]:
        """What a script begun has to say at its end, as `run`. Raises PeerFailed."""
        try:
            text, _ = process.communicate(timeout=patience_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            raise PeerFailed(f"{self.name} did not end when it was asked to") from None
        return self._read(process.returncode, text, errors.read_text())

    def _script(self, more: dict[str, Any]) -> list[str]:
        return ["-m", self._module, json.dumps(self._asked | more)]

    def _read(self, exit_status: int, text: str, errors: str) -> list[dict[str, Any]]:
        if exit_status:
            print(errors, file=sys.stderr)
            raise PeerFailed(f"{self.name} ended with {exit_status}: see above")
        answer = json.loads(text.splitlines()[-1])
        self.version, self.settings = answer["version"], answer["settings"]
        self.checked += answer["checked"]
        return list(answer["results"])

    def _start(self, arguments: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self._python, *arguments], capture_output=True, text=True, env=self._environment(), timeout=PATIENCE_SECONDS
        )

    def _environment(self) -> dict[str, str]:
        return os.environ | {"PYTHONPATH": str(ROOT), "PYTHONNOUSERSITE": "1"}
