"""`headrace bench start`: the time from headrace up to the first step and to the first weights that have learned.

A run of its own each time, in a folder that is removed, with everything a run has. Run 0 does not count: it writes the
bytecode of all modules, as an installation does. `first update` is when the learner announces weights of version 1. `CPU until
then` is the processor time of each process at that moment: unlike the others it hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import psutil

from benchmarks.common.processes import CaseFailed
from benchmarks.common.report import Report, command_note, make_parser, say
from benchmarks.start.stamp import FILE
from deploy.children import child_environment, python_command
from transport.run_dir import RunDir
from transport.sockets.client import Listener

WRAPPER = "benchmarks.start.stamp:FirstStep"
LONGEST_SECONDS, END_SECONDS, LOOK_SECONDS = 120.0, 60.0, 0.005


def measure(env: str, more: list[str], folder: Path, bytecode: str) -> dict[str, float]:
    """Seconds from the command on, by what has happened then, and processor seconds by process."""
    stamp, run = folder / "first-step", RunDir(folder / "runs" / "it")
    environment = child_environment(PYTHONPYCACHEPREFIX=bytecode, PYTHONDONTWRITEBYTECODE="", **{FILE: str(stamp)})
    command = python_command("deploy.cli.main", "up", "--env", env, "--run", "it", "--env.wrappers", WRAPPER, *more)
    with (folder / "log.txt").open("w") as log:
        began = time.time()
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log, env=environment)
    try:
        _wait_for_weights(run, process, folder / "log.txt")
        updated = time.time()
        found = {"first step": float(stamp.read_text()) - began, "first update": updated - began}
        return found | {f"CPU until then, {name}": seconds for name, seconds in _processor_seconds(process.pid).items()}
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(END_SECONDS)


def _wait_for_weights(run: RunDir, process: subprocess.Popen[bytes], log: Path) -> None:
    """Returns when the learner announces weights that have learned."""
    listener, deadline = None, time.monotonic() + LONGEST_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        time.sleep(LOOK_SECONDS)
        if listener is None and (address := run.endpoint("weights")):
            listener = Listener(address, None, "weights")
        newest = listener.newest() if listener else None
        if newest is not None and newest.version > 0:
            assert listener is not None
            listener.close()
            return
    raise CaseFailed(f"no update: {' '.join(log.read_text().splitlines()[-1:])}")


def _processor_seconds(pid: int) -> dict[str, float]:
    """Of a supervisor, of each kind of process that it has started, and of those that have ended."""
    here, found = psutil.Process(pid), defaultdict[str, float](float)
    used = here.cpu_times()
    found["supervisor"], found["ended"] = used.user + used.system, used.children_user + used.children_system
    for child in here.children():
        words, times = child.cmdline(), child.cpu_times()
        name = words[words.index("-m") + 1] if "-m" in words else "other"
        found[name] += times.user + times.system
    found["all"] = sum(found.values())
    return dict(found)


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = make_parser("start", __doc__)
    parser.add_argument("--env", default="CartPole-v1", help="the environment (default CartPole-v1)")
    parser.add_argument("--runs", type=int, default=5, help="runs, the median counts (default 5)")
    parser.add_argument("--quick", action="store_true", help="one run")
    options, more = parser.parse_known_args(arguments)
    report, found = Report("start"), defaultdict[str, list[float]](list)
    report.notes.append(command_note("start", arguments))
    with tempfile.TemporaryDirectory(prefix="headrace-bytecode-") as bytecode:
        for number in range(1 + (1 if options.quick else options.runs)):
            with tempfile.TemporaryDirectory(prefix="headrace-start-") as folder:
                measured = measure(options.env, more, Path(folder), bytecode)
            say(f"run {number}: first step {measured['first step']:.2f} s, first update {measured['first update']:.2f} s")
            for name, seconds in measured.items() if number else ():
                found[name].append(seconds)
    report.notes.append(f"load of the machine in the last minute {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores")
    for name, seconds in found.items():
        report.add(options.env, name, "s", seconds)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
