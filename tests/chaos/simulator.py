"""The simulator of the rehearsals: the counting environment, with faults on command.

`--env tests.chaos.simulator:vector` (image, slow_vector, slow_image). Importing it in an actor's process with
HEADRACE_CHAOS_HISTORY set writes that process's history down (history.py).

HEADRACE_CHAOS_FAULTS names a file of JSON that says what goes wrong: `{"actor-1": {"hang": "busy"}, "*": {"step_seconds": 2}}`.
It is looked at with each step and each reset, so that a test may write it (`command`) while actors run. Every environment of
the actors that are named obeys, until the file says otherwise:

    pid              the only process that obeys: one that replaces it under the same name does not
    raise_at_reset   true: reset raises
    hang             "busy": a loop that keeps the GIL; "deadlock": waits for a lock that nobody gives back; at `at_step`
    at_step          steps of one environment since it was made, before which nothing hangs
    leak_bytes       bytes that each step takes and never gives back
    step_seconds     what a step takes
    child            true: starts a server as a child process, once; "session": one in a session of its own
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np

from tests.chaos import history
from tests.flow.counting_env import CountingEnv
from transport.files.writing import write_atomically

FAULTS_VARIABLE = "HEADRACE_CHAOS_FAULTS"
STEP_SECONDS = 0.03
EVERYONE = "*"
CHILD = "import socket, time; server = socket.create_server(('127.0.0.1', 0)); time.sleep(3600)"
CHILD_MARK = "headrace-chaos-child"  # an argument of every such child, beside the pid of who started it

Faults = dict[str, Any]


def command(path: Path, **faults: Faults) -> None:
    """Tells running actors what goes wrong from now on: by name ("actor_1" means actor-1), or `everyone`."""
    named = {EVERYONE if name == "everyone" else name.replace("_", "-"): value for name, value in faults.items()}
    write_atomically(path, json.dumps(named).encode())


def actor_name() -> str:
    """This process's name, if it is an actor's."""
    return f"actor-{sys.argv[sys.argv.index('--actor') + 1]}" if "--actor" in sys.argv else ""


class ChaosEnv(CountingEnv):
    """Counts, tells the history what it is about to do, and does as it is commanded."""

    _leaked: list[np.ndarray] = []
    _child: subprocess.Popen[bytes] | None = None

    def __init__(self, image: bool, step_seconds: float = 0.0) -> None:
        """Reads where its commands will be."""
        super().__init__(image, step_seconds)
        self._usual_seconds = step_seconds
        self._path = os.environ.get(FAULTS_VARIABLE, "")
        self._read_at = (-1, -1)
        self._faults: Faults = {}
        self._steps = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Fails if it is told to."""
        self._listen()
        if self._faults.get("raise_at_reset"):
            raise RuntimeError("this simulator was told to fail at reset")
        return super().reset(seed=seed, options=options)

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        """Writes the step down, then takes it, or does what it was told instead."""
        self._listen()
        self._obey()
        self._steps += 1
        if history.current is not None:
            history.current.step(self.identity, self.episode, self.count)
        return super().step(action)

    def _listen(self) -> None:
        """Takes new commands in."""
        if not self._path:
            return
        try:
            found = os.stat(self._path)
        except FileNotFoundError:
            return
        changed = found.st_mtime_ns, found.st_ino  # the time alone is coarse on some file systems
        if changed == self._read_at:
            return
        self._read_at = changed
        named = json.loads(Path(self._path).read_text())
        self._faults = named.get(EVERYONE, {}) | named.get(actor_name(), {}) if actor_name() else {}
        if self._faults.get("pid", os.getpid()) != os.getpid():
            self._faults = {}
        self.step_seconds = self._faults.get("step_seconds", self._usual_seconds)

    def _obey(self) -> None:
        faults = self._faults
        if faults.get("child") and ChaosEnv._child is None:
            mark = f"{CHILD_MARK}-{os.getpid()}"
            own_session = faults["child"] == "session"
            ChaosEnv._child = subprocess.Popen([sys.executable, "-S", "-c", CHILD, mark], start_new_session=own_session)
        if leak := faults.get("leak_bytes"):
            ChaosEnv._leaked.append(np.ones(leak, np.uint8))
        if self._steps >= faults.get("at_step", 0):
            hang(faults.get("hang", ""))


def hang(how: str) -> None:
    """Never comes back, if `how` says anything."""
    if how == "busy":
        while True:
            pass
    if how == "deadlock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()


def image() -> ChaosEnv:
    return ChaosEnv(image=True)


def vector() -> ChaosEnv:
    return ChaosEnv(image=False)


def slow_image() -> ChaosEnv:
    return ChaosEnv(image=True, step_seconds=STEP_SECONDS)


def slow_vector() -> ChaosEnv:
    return ChaosEnv(image=False, step_seconds=STEP_SECONDS)


if actor_name():
    history.install()
