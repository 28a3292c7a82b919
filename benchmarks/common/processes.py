"""Processes of a benchmark: started with few compute threads, waited for, ended, and what their metrics say."""

from __future__ import annotations

import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from benchmarks.common.report import say
from deploy.children import child_environment, python_command
from transport.run_dir import RunDir

READY_SECONDS = 120.0
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
ONE_THREAD = dict.fromkeys(THREADS, "1")


class CaseFailed(SystemExit):
    """A case that cannot be measured: one line says why. It ends a benchmark that has no other cases."""


def start(*arguments: str, threads: int = 1) -> subprocess.Popen[str]:
    """A process of a benchmark's, as a run starts one; what it says on its output is read at its end."""
    environment = child_environment(**dict.fromkeys(THREADS, str(threads)))
    return subprocess.Popen([sys.executable, "-m", *arguments], stdout=subprocess.PIPE, text=True, env=environment)


def headrace(folder: Path, *words: str) -> str:
    """Runs a command of headrace in `folder`. Returns what it prints if that is JSON; else it is shown. Raises
    CalledProcessError."""
    say(shlex.join(("headrace", *words)))
    output, command = subprocess.PIPE if "--json" in words else None, python_command("deploy.cli.main", *words)
    return subprocess.run(command, cwd=folder, env=child_environment(), check=True, stdout=output, text=True).stdout or ""


def end(processes: Sequence[subprocess.Popen[str]]) -> None:
    """Asks all that are still there to stop, and waits for them."""
    for process in processes:
        process.terminate()
    for process in processes:
        if process.stdout is not None and not process.stdout.closed:
            process.communicate(timeout=READY_SECONDS)
        process.wait(timeout=READY_SECONDS)


def records(run: RunDir, name: str) -> list[dict[str, float]]:
    """The metrics records of a process; empty where there are none, or one is half written."""
    try:
        return [msgspec.json.decode(line) for line in run.metrics(name).read_bytes().splitlines()]
    except (OSError, msgspec.DecodeError):  # not there, or a line half written
        return []


def rate(records: Sequence[dict[str, float]], counter: str) -> float:
    """A counter's growth per second from the first record to the last."""
    first, last = records[0], records[-1]
    return (last[counter] - first[counter]) / (last["time"] - first["time"])


def wait_until(
    true: Callable[[], bool], what: str, processes: Sequence[subprocess.Popen[str]] = (), seconds: float = READY_SECONDS
) -> None:
    """Waits for a predicate. Raises CaseFailed when it takes too long, or when one of `processes` ends: with its last line."""
    deadline = time.monotonic() + seconds
    while not true():
        for process in processes:
            if process.poll() is not None:
                lines = process.communicate()[0].strip().splitlines()
                raise CaseFailed(lines[-1] if lines else f"a process ended with {process.returncode} before {what}")
        if time.monotonic() > deadline:
            raise CaseFailed(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(0.1)
