"""`headrace down`: stops a run."""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import psutil

from deploy import runs
from deploy.children import POSIX
from deploy.cli.common import DONE, FAILED, add_run, ask_supervisor, complain
from deploy.config.files import read_deploy
from deploy.config.run import DeployConfig
from deploy.errors import ConfigError
from deploy.reporting.events import OVER
from transport.messages.control import Stop, Stopping
from transport.run_dir import RunDir

SPARE_SECONDS = 2.0  # beyond deploy.stop_seconds, without a sign of the supervisor
FINISH_SECONDS = 600.0  # after the last status, for the checksums of a large run's files


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    return stop(runs.chosen(parsed))


def has_ended(pid: int | None) -> bool:
    """True once a supervisor that has given its lock back has ended as well, which takes a moment longer."""
    try:
        return pid is None or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _is_here(pid: int, folder: RunDir) -> bool:
    """True where the process that has the run's lock is `pid` of this machine: a number of another machine, whose files this one
    shares, or of a container is here the number of some other process."""
    try:
        return str(folder.lock) in (file.path for file in psutil.Process(pid).open_files())
    except psutil.Error:
        return False


def _deploy(folder: RunDir) -> DeployConfig:
    """Its settings; the defaults where its user has broken the file since it was started."""
    try:
        return read_deploy(folder.config)
    except ConfigError:
        return DeployConfig()


def _result(folder: RunDir) -> int:
    """Says how a run has ended that was stopped. Returns the exit status."""
    last = runs.read_status(folder) or {}
    if last.get("state") == "stopped":
        print(f"run {folder.name} is down")
        return DONE
    lost = f"its supervisor was killed, or could not write its last status: see {folder.log('supervisor')}"
    return complain(f"run {folder.name} is down, but {last.get('reason') if last.get('state') == 'failed' else lost}", FAILED)


def _ask_again(folder: RunDir, pid: int) -> bool:
    """Asks a supervisor that has not answered. Windows has no signal that asks: there SIGTERM would end it at once."""
    if not POSIX:
        return isinstance(ask_supervisor(folder, Stop("headrace down")), Stopping)
    with suppress(OSError):
        os.kill(pid, signal.SIGTERM)
    return True


def stop(folder: RunDir) -> int:
    """Asks the supervisor to stop, waits, and prints the result. Returns the exit status."""
    if not runs.is_up(folder):
        folder.remove_sockets()
        print(f"run {folder.name} is not up")
        return DONE
    patience = _deploy(folder).stop_seconds + SPARE_SECONDS
    last, up = runs.read_status(folder) or {}, runs.supervisor_pid(folder)
    seen = None if up and last.get("pid") == up else last.get("time")  # another pid: the status is of an earlier start
    deadline = time.monotonic() + patience
    pid, asked = None, isinstance(ask_supervisor(folder, Stop("headrace down")), Stopping)
    while time.monotonic() < deadline:
        found = runs.supervisor_pid(folder)  # one that has just taken its lock writes its pid a moment later
        if found and found != pid and _is_here(found, folder):
            pid = found
        if pid and not asked:
            asked = _ask_again(folder, pid)
        if not runs.is_up(folder) and has_ended(pid):
            return _result(folder)
        last = runs.read_status(folder) or {}
        if last.get("time") != seen:  # a supervisor that still writes waits for what is being saved
            seen = last.get("time")
            deadline = time.monotonic() + (FINISH_SECONDS if last.get("state") in OVER else patience)
        time.sleep(0.05)
    if not pid:
        return complain(f"run {folder.name} did not stop: it is up on another machine or in a container; stop it there", FAILED)
    kill = f"kill -9 {pid}" if POSIX else f"taskkill /f /pid {pid}"
    return complain(f"run {folder.name} did not stop: its supervisor (pid {pid}) does not answer; `{kill}` ends it", FAILED)
