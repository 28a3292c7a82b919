"""Makes and steps an environment before a run starts, in a child process with a time limit.

The parent (the command line) imports neither torch nor a simulator, and survives an environment that hangs or crashes. The child
reports in a file that the parent names, because simulators print to stdout: JSON lines, {"phase": "make"} at the beginning of
each phase, and at the end {"facts": …} or {"error": …}.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from actors.config import EnvConfig
from actors.envs.make import env_section
from actors.envs.preflight.job import JobObject
from actors.errors import EnvError
from learner.devices import installing
from transport.experience import Codec, Column, ExperienceSpec

COMMAND = (sys.executable, "-m", "actors.envs.preflight.child")
TELL_SECONDS = 5.0
BESIDE = " in one process"  # the end of the names of phases that are about an environment beside others
ADVICE = (
    "where a process can have only one, take --actors.envs-per-actor 1; where they only need different ports or the like, a "
    "factory with parameters worker_index and env_index receives numbers for them"
)
CODE_SCALE, PHOTOGRAPH_SCALE = 1 / 10, 1 / 255  # of small images of bytes, by what was seen of them
CODE_SIDE = 12  # an image with no shorter side is none of codes
ENDLESS_STEPS = 2_000  # for the end of an episode that has no limit of steps


class PreflightRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The child's input, on stdin."""

    env: dict[str, Any]  # the env section
    codec: Codec
    report: str
    copies: int = 1  # environments of an actor; 0: the usual number


class Line(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the child's report."""

    phase: str = "import"
    facts: PreflightResult | None = None
    error: str = ""


class PreflightResult(msgspec.Struct, frozen=True):
    """The facts about an environment that a run needs."""

    spec: ExperienceSpec  # without the algorithm's needs
    slowest_seconds: float = 0.0  # the longest reset or step, the first reset included
    spaces: dict[str, Any] = {}  # {"observation": …, "action": …} as data
    options: dict[str, Any] = {}  # the family's options, for the env section of the run
    goals: bool = False  # whether it is a goal environment with a compute_reward
    notes: tuple[str, ...] = ()  # lines about what is not wrong, but often a mistake
    goal_complaint: str = ""  # why its compute_reward does not suit hindsight; empty if it does
    resident_bytes: int = 0  # memory of a process with one environment, without the network
    largest_observation: float = 0.0  # magnitude of a value that is stored as a float
    largest_reward: float = 0.0
    make_seconds: float = 0.0  # of one environment
    endless: bool = False  # whether it has no limit of steps, and no episode ended during the pre-flight


def may_hold_codes(field: Column) -> bool:
    """True for an image so small that it may be a grid of codes, whatever its space allows: its scale is measured then."""
    return field.is_image and min(field.shape[-2:]) < CODE_SIDE and field.scale in (CODE_SCALE, PHOTOGRAPH_SCALE)


def preflight(
    config: EnvConfig,
    codec: Codec,
    command: Sequence[str] = COMMAND,
    environment: Mapping[str, str] | None = None,
    copies: int = 1,
    tell: Callable[[str], None] = lambda phase: None,
    meanwhile: Callable[[], object] = lambda: None,
) -> PreflightResult:
    """Makes, resets and steps the environment in a child process, and `copies` beside each other (0: as many as an actor usually
    has). Calls `tell` with what is being done where that takes long, and once `meanwhile` when the child has been started.

    `command` runs the child, in the environment variables `environment` (None: this process's); both can name another
    interpreter. Raises EnvError, in one line, if the environment cannot be made, breaks Gymnasium's API, crashes, or takes more
    than `config.preflight_seconds` in all.
    """
    with tempfile.TemporaryDirectory(prefix="headrace-preflight-") as folder:
        report = Path(folder, "report.jsonl")
        chatter = Path(folder, "stderr.txt")
        order = msgspec.json.encode(PreflightRequest(env_section(config), codec, str(report), copies))
        limit, say = config.preflight_seconds, lambda: tell(read_report(report)[-1].phase)
        status = _run_child(command, environment, order, chatter, limit, say, meanwhile)
        lines = read_report(report)
        phase = lines[-1].phase
        if lines[-1].error:
            raise EnvError(lines[-1].error)
        if lines[-1].facts is not None:
            return lines[-1].facts
        if status is None:
            within = f"{limit:g} s (raise --env.preflight_seconds if it is only slow)"
            raise EnvError(f"{config.id}: {phase} did not return within {within}{_advice(phase)}")
        last = _last_line(chatter)
        if lacks := installing.missing_package(last) if command[0] == sys.executable else "":
            raise EnvError(lacks)
        raise EnvError(f"{config.id}: the process died in {phase} ({_cause(status)}){last}{_advice(phase)}")


def _run_child(
    command: Sequence[str],
    environment: Mapping[str, str] | None,
    order: bytes,
    chatter: Path,
    limit_seconds: float,
    tell: Callable[[], None],
    meanwhile: Callable[[], object],
) -> int | None:
    """Runs the child and gives its exit status. After the time limit, kills it with its descendants and gives None. Calls `tell`
    every TELL_SECONDS."""
    deadline = time.monotonic() + limit_seconds
    with chatter.open("wb") as stderr:
        child = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,  # its own process group, so that a simulator's helper processes are killed with it
        )
    job = JobObject(child.pid)
    waiter = threading.Thread(target=child.communicate, args=(order,), daemon=True)  # with a limit it would poll
    try:
        waiter.start()
        meanwhile()
        while (left := deadline - time.monotonic()) > 0:
            waiter.join(min(left, TELL_SECONDS))
            if not waiter.is_alive():
                return child.returncode
            tell()
        return None
    finally:  # also after Ctrl-C
        _kill_group(child)
        job.close()


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    """Kills the processes that remain in the child's group."""
    if hasattr(os, "killpg"):
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass  # none remains
    else:
        child.kill()
    child.wait()


def read_report(report: Path) -> list[Line]:
    """The child's lines, without an incomplete last one. If there is none, the child was still importing."""
    text = report.read_bytes() if report.exists() else b""
    lines = [msgspec.json.decode(line, type=Line) for line in text.split(b"\n")[:-1]]
    return lines or [Line()]


def _advice(phase: str) -> str:
    return f": {ADVICE}" if phase.endswith(BESIDE) else ""


def _cause(status: int) -> str:
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


def _last_line(chatter: Path) -> str:
    """The last line of the child's stderr, as the end of a message."""
    lines = chatter.read_text(errors="replace").split("\n")
    last = next((line.strip() for line in reversed(lines) if line.strip()), "")
    return f": {last[:300]}" if last else ""
