"""The command, environment and interpreter of the processes that Headrace starts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.errors import ConfigError
from transport.files.writing import open_to_append

ROOT = Path(__file__).resolve().parent.parent
POSIX = os.name == "posix"
# Neither Ctrl-C nor the end of the terminal reaches such a process on Windows; on POSIX it has a session of its own.
APART = 0 if POSIX else subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.CREATE_NO_WINDOW  # type: ignore[attr-defined]
LAUNCHER = "__PYVENV_LAUNCHER__"  # tells Windows's Python which virtual environment it is in
OLDEST_PYTHON = [3, 11]
CHECK_SECONDS = 30.0
ENCODING = "PYTHONIOENCODING"  # of the standard streams: encoding:errors
UTF8 = {ENCODING: "utf-8:replace"}  # for a child whose lines are read as UTF-8, whatever the locale
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when a library is imported
ACTOR_IMPORTS = tuple("actors numpy gymnasium cv2 zmq msgpack msgspec psutil cramjam zstandard safetensors".split())
CHECK = """
import importlib.util, json, sys
missing = [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None]
print(json.dumps([sys.version_info[:2], missing]))
"""


def python_command(module: str, *arguments: str, python: str = "") -> list[str]:
    """`python -m module`. A folder of that name in the current directory is not imported in its place.

    `python` is another interpreter than this one; then the process also needs `child_environment(python)`.
    """
    # On Windows the interpreter of a virtual environment is a launcher with another pid than the program's.
    executable = getattr(sys, "_base_executable", sys.executable) if sys.platform == "win32" else sys.executable
    return [python or executable, "-P", "-m", module, *arguments]


def child_environment(python: str = "", **extra: str) -> dict[str, str]:
    """This process's environment with PYTHONPATH for a child: Headrace's modules first, then the user's. A letter that the
    child's standard streams do not have is printed as `?`.

    `python` is the child's interpreter where it is not this one.
    """
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = dict.fromkeys([str(ROOT), *filter(None, known), os.getcwd()])
    if python and ROOT == Path(sysconfig.get_path("purelib")):
        del paths[str(ROOT)]  # what is installed beside our modules was built for this interpreter
    encoding = f"{os.environ.get(ENCODING, '').partition(':')[0]}:replace"
    result = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1", ENCODING: encoding} | extra
    if python:
        result.pop(LAUNCHER, None)
    elif sys.platform == "win32" and sys.prefix != sys.base_prefix:
        result[LAUNCHER] = sys.executable
    return result


def run_child(
    command: Sequence[str], seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a process until it ends, without input, and returns what it has printed.

    `environment` is `child_environment()` unless it is given. Raises OSError, and subprocess.TimeoutExpired after `seconds`.
    """
    return subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=seconds,
        env=child_environment() if environment is None else environment,
    )


def last_error(done: subprocess.CompletedProcess[str]) -> str:
    """The last line that a process has printed to stderr; its exit status where there is none."""
    return (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]


def check_actor_python(python: str, modules: Sequence[str] = ACTOR_IMPORTS, reason: str = "") -> None:
    """Raises ConfigError where deploy.actor_python names no interpreter with these modules. `reason` says why they are needed.
    An empty `python` is this interpreter, which has them."""
    if not python:
        return
    try:
        done = run_child([python, "-c", CHECK, *modules], CHECK_SECONDS, child_environment(python))
        done.check_returncode()
        version, missing = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        raise ConfigError(f"deploy.actor_python: {python} does not run as a Python interpreter; give the path of one") from None
    if version < OLDEST_PYTHON:
        raise ConfigError(f"deploy.actor_python: {python} is Python {version[0]}.{version[1]}; actors need 3.11 or newer")
    if missing:
        why = f" ({reason})" if reason else ""
        raise ConfigError(
            f"deploy.actor_python: {python} lacks {', '.join(missing)}{why}; install Headrace for that interpreter, too"
        )


def start_in_background(command: list[str], log: Path, environment: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
    """Starts a process that Ctrl-C does not reach and that outlives this one, and appends its output to `log`.

    `environment` is `child_environment()` unless it is given. Raises OSError.
    """
    detached = 0 if POSIX else subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP  # type: ignore[attr-defined]
    with open_to_append(log) as output:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=child_environment() if environment is None else environment,
            start_new_session=POSIX,
            creationflags=detached,
        )
