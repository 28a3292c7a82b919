"""One child process: started, listened to line by line, asked to end, killed, and its end put into words."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from deploy.config.errors import ConfigError
from deploy.supervision.memory import OUT_OF_MEMORY, KernelsVerdict
from deploy.supervision.reaper import MARK_VARIABLE
from deploy.supervision.topology import Plan
from transport.lifetime import PARENT_VARIABLE

ROOT = Path(__file__).resolve().parent.parent.parent
POSIX = os.name == "posix"
MAX_LINE_BYTES = 64 * 1024  # a longer line is cut, so that a child that never ends one cannot fill the memory
LAST_WORDS_SECONDS = 0.5
LAUNCHER = "__PYVENV_LAUNCHER__"  # tells Windows's Python which virtual environment it is in
OLDEST_PYTHON = [3, 11]
SURVEY_SECONDS = 30.0
SIMULATING = ("actor", "evaluator")  # theirs is the code that leaks, and they are soon replaced
FIRST_TO_GO = 300  # of 1000: what the kernel adds to their share of the memory when it has to choose whom to kill
ACTOR_IMPORTS = tuple("actors torch numpy gymnasium cv2 zmq msgpack msgspec cramjam zstandard safetensors".split())
SURVEY = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([sys.version_info[:2], missing]))
"""


class Exit(NamedTuple):
    """How a process ended. `code` is negative for a signal, as in subprocess; `last_words` its last line."""

    code: int
    last_words: str = ""
    out_of_memory: bool = False  # the kernel chose it

    @property
    def reason(self) -> str:
        """For a person."""
        if self.out_of_memory:
            return f"{OUT_OF_MEMORY}: killed by the kernel"
        if self.code < 0:
            try:
                return f"killed by {signal.Signals(-self.code).name}"
            except ValueError:
                return f"killed by signal {-self.code}"
        if self.code == 0:
            return "it ended by itself"
        return f"exit {self.code}: {self.last_words}" if self.last_words else f"exit {self.code}"


def python_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """`python -m module`, in such a way that a folder of that name in the current directory cannot take its place.

    `python` is another interpreter than this one; then the process also needs `child_environment(python)`.
    """
    # On Windows the interpreter of a virtual environment is a launcher with another pid than the program's.
    executable = getattr(sys, "_base_executable", sys.executable) if sys.platform == "win32" else sys.executable
    return [python or executable, "-P", "-m", module, *arguments]


def child_environment(python: str = "", **extra: str) -> dict[str, str]:
    """This process's environment with what every child needs: our modules first, the user's own after them.

    `python` is the child's interpreter where it is not this one.
    """
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([str(ROOT), *filter(None, known), os.getcwd()])
    if python and ROOT == Path(sysconfig.get_path("purelib")):
        del paths[str(ROOT)]  # what is installed beside our modules was built for this interpreter
    result = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"} | extra
    if python:
        result.pop(LAUNCHER, None)
    elif sys.platform == "win32" and sys.prefix != sys.base_prefix:
        result[LAUNCHER] = sys.executable
    return result


def check_actor_python(python: str) -> None:
    """Raises ConfigError where deploy.actor_python names no interpreter that an actor could run in; nothing is fine."""
    if not python:
        return
    try:
        done = subprocess.run(
            [python, "-c", SURVEY, *ACTOR_IMPORTS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SURVEY_SECONDS,
            check=True,
            env=child_environment(python),
        )
        version, missing = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise ConfigError(f"deploy.actor_python: {python} does not run as a Python interpreter; give the path of one") from None
    if version < OLDEST_PYTHON:
        raise ConfigError(f"deploy.actor_python: {python} is Python {version[0]}.{version[1]}; actors need 3.11 or newer")
    if missing:
        raise ConfigError(f"deploy.actor_python: {python} lacks {', '.join(missing)}; install Headrace for that interpreter, too")


class Child:
    """A process in a session of its own, so that Ctrl-C reaches only the supervisor. Start it from the main thread."""

    def __init__(self, name: str, command: list[str], environment: dict[str, str], on_line: Callable[[str, str], None]) -> None:
        """Starts it. `on_line(name, line)` is called from reader threads, whole lines only. Raises OSError."""
        flags = 0 if POSIX else subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
        self._popen = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,  # one pipe: the order of the lines is kept
            env=environment,
            start_new_session=POSIX,
            creationflags=flags,
        )
        self.pid = self._popen.pid
        self._name = name
        self._on_line = on_line
        self._last_words = ""
        self._killed = False
        self._kernel = KernelsVerdict(self.pid)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def poll(self) -> Exit | None:
        """How it ended, or None while it lives. Whatever it had started is ended with it."""
        if self._popen.returncode is None and hasattr(os, "waitid"):
            ended = os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            self._kernel.look(at_once=ended is not None)
            if ended is None:
                return None
            self._signal(os.killpg, signal.SIGKILL)  # not reaped yet: its number cannot be another's
        code = self._popen.poll()
        if code is None:
            return None
        self._reader.join(LAST_WORDS_SECONDS)
        return Exit(code, self._last_words, POSIX and code == -signal.SIGKILL and not self._killed and self._kernel.guilty)

    def ask(self) -> None:
        """Asks it to end. Where there is no SIGTERM, the Stop message alone does that."""
        if POSIX:
            self._signal(os.kill, signal.SIGTERM)

    def kill(self) -> None:
        """Ends it, and all it started, stopped or deaf as it may be."""
        self._killed = True
        if POSIX:
            self._signal(os.killpg, signal.SIGKILL)
        else:
            self._popen.kill()

    def _signal(self, send: Callable[[int, int], None], number: int) -> None:
        if self._popen.returncode is None:
            try:
                send(self.pid, number)
            except (ProcessLookupError, PermissionError):  # macOS says the latter of a group of zombies
                pass

    def _read(self) -> None:
        assert self._popen.stdout is not None
        rest = b""
        with self._popen.stdout as stream:
            while piece := os.read(stream.fileno(), MAX_LINE_BYTES):
                *lines, rest = (rest + piece).split(b"\n")
                if len(rest) > MAX_LINE_BYTES:
                    lines, rest = [*lines, rest], b""
                self._deliver(lines)
            self._deliver([rest] if rest else [])

    def _deliver(self, lines: list[bytes]) -> None:
        for raw in lines:
            line = raw.decode("utf-8", "replace").rstrip()
            if line:
                self._last_words = line[-300:].removeprefix(f"{self._name}: ")
            self._on_line(self._name, line)


def spawn(plan: Plan, on_line: Callable[[str, str], None], mark: str) -> Child:
    """Starts a process of a run; it and all it starts have the mark in their environment. Raises OSError."""
    environment = child_environment(
        plan.python,
        **{PARENT_VARIABLE: str(os.getpid()), MARK_VARIABLE: mark},
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(plan.threads)),
    )
    command = python_command(plan.module, *plan.arguments, python=plan.python)
    child = Child(plan.name, command, environment, on_line)
    if plan.role in SIMULATING:
        with contextlib.suppress(OSError):  # elsewhere than on Linux, say
            Path(f"/proc/{child.pid}/oom_score_adj").write_text(str(FIRST_TO_GO))
    return child


def start_in_background(command: list[str], log: Path) -> Callable[[], int | None]:
    """Starts a process that outlives this one, its output appended to `log`; returns its `poll`."""
    detached = 0 if POSIX else subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
    with log.open("ab") as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=child_environment(),
            start_new_session=POSIX,
            creationflags=detached,
        ).poll
