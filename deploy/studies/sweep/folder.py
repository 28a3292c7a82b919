"""The folder of a sweep: one process at a time, and one task for all its trials."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec

from deploy.errors import ConfigError
from deploy.studies import jobs
from deploy.studies.sweep.plan import Plan
from transport.files.documents import Damaged, read_document
from transport.files.writing import write_atomically

TASK = "task.json"


class SweepRunning(RuntimeError):
    """Another process works on the sweep."""


@contextmanager
def locked(plan: Plan) -> Iterator[None]:
    """Makes the folder and locks it, until the end of the block or of this process. Raises SweepRunning, OSError."""
    plan.folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def refusal(pid: str) -> SweepRunning:
        return SweepRunning(f"sweep {plan.path.stem} is running already (pid {pid}); `{plan.command} --show` shows its trials")

    with ExitStack() as at_end:
        if os.name != "posix":  # Windows removes no open file
            at_end.callback(_tidy, plan)
        at_end.enter_context(jobs.locked(plan.folder, refusal))
        if os.name == "posix":  # while it is locked
            at_end.callback(_tidy, plan)
        yield


def _tidy(plan: Plan) -> None:
    """Removes the folder where a mistake in the sweep's file was found."""
    if not (plan.folder / TASK).is_file():
        with suppress(OSError):
            (plan.folder / jobs.LOCK).unlink(missing_ok=True)
            plan.folder.rmdir()
            plan.folder.parent.rmdir()


def check_task(plan: Plan) -> None:
    """Raises ConfigError where the trials in the folder were made for another task. Its trials may become more."""
    path = plan.folder / TASK
    try:
        before = read_document(path, dict[str, Any])
    except FileNotFoundError:
        return
    except Damaged as error:
        raise ConfigError(f"{error}; move {plan.folder} away to start anew") from error
    now: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(plan.identity))
    changed = [key for key in dict.fromkeys((*before, *now)) if before.get(key) != now.get(key)]
    if changed:
        key = changed[0]
        made = f"the trials in {plan.folder} were made with {_short(before.get(key))}"
        raise ConfigError(
            f"{plan.path}: {key} is {_short(now.get(key))}, and {made}: give the file another name, or move the folder away"
        )


def write_task(plan: Plan) -> None:
    """Remembers what the trials in the folder are made for. Raises OSError."""
    write_atomically(plan.folder / TASK, msgspec.json.encode(plan.identity))


def _short(value: object) -> str:
    return "not given" if value is None else str(msgspec.json.encode(value), "utf-8")
