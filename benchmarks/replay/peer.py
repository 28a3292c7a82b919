"""Runs a peer's script by the peer's Python, and reads the figures it prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from deploy.children import ROOT

PEERS = ("reverb", "reverb-trajectory")
PATIENCE_SECONDS = 1800.0


class PeerFailed(Exception):
    """A peer that cannot be measured: the message says why, and what to do."""


class Peer:
    """One peer. `asked` goes to its script; `version`, `settings` and `checked` are what the script says of itself."""

    def __init__(self, name: str, python: str, asked: dict[str, Any]) -> None:
        """Raises PeerFailed where the Python is not one, or has not got the peer."""
        self.name, self.version, self.checked = name, "", 0
        self.settings: dict[str, Any] = {}
        self._python, self._package = python, name.partition("-")[0]
        self._script = ["-m", f"benchmarks.replay.{self._package}_peer"]
        self._asked = asked | {"peer": name}
        if not Path(python).is_file():
            raise PeerFailed(f"--peer-python: there is no {python}")
        if self._start(["-c", f"import importlib.util as u, sys; sys.exit(u.find_spec({self._package!r}) is None)"]).returncode:
            raise PeerFailed(f"--peer-python: {python} has no {self._package}; benchmarks/README.md says how to install it")

    def run(self) -> list[dict[str, Any]]:
        """Every case of the peer's once: [{"case", "metric", "unit", "value"}]. Raises PeerFailed."""
        done = self._start([*self._script, json.dumps(self._asked)])
        return self._read(done.returncode, done.stdout, done.stderr)

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
