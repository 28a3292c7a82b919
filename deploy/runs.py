"""Runs by name: their folders, their states, and the lock that allows one supervisor for each."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from deploy.config import trust
from deploy.errors import ConfigError
from deploy.reporting.status_file import read_document
from transport.experience import ExperienceSpec, read_spec
from transport.files import writing
from transport.files.documents import open_file, read_bytes, read_text
from transport.files.file_lock import is_locked, try_lock, unlock
from transport.names import nearest
from transport.run_dir import RunDir

RUNS = Path("runs")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
KEPT_ASIDE = 5  # old folders of a run
ASIDE = ".aside"  # a file in each folder that was moved aside; a run may have been named NAME.1 by its user
LOCK_TRIES, LOCK_PAUSE_SECONDS = 5, 0.05  # `is_up` of another process takes the lock for a moment


class AlreadyUp(RuntimeError):
    """Another supervisor has the run. `pid` is None where it could not be read."""

    def __init__(self, run_dir: RunDir, pid: int | None) -> None:
        super().__init__(
            f"run {run_dir.name} is already up (supervisor pid {pid or 'unknown'}); "
            f"stop it with `headrace down {run_dir.name}` or start another with --run NAME"
        )
        self.pid = pid


def default_name(env_id: str, algorithm: str) -> str:
    """The name of a run without --run: mario:1-2 and dqn make mario-1-2-dqn."""
    return re.sub(r"[^a-z0-9]+", "-", f"{env_id}-{algorithm}".lower()).strip("-")[:100]


def run_dir(name: str) -> RunDir:
    """The folder of a run, which need not exist. Raises ConfigError for a name with other characters, and for a path that cannot
    be written in messages and files."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"--run {name!r} is not a name: letters, digits, dots, dashes and underscores only")
    found = RunDir(RUNS / name)
    try:
        str(found.path).encode()
    except UnicodeEncodeError:
        raise ConfigError(f"the path {found.path} is not UTF-8, as that of a run must be: work in another folder") from None
    return found


def all_runs(folder: Path = RUNS) -> list[RunDir]:
    """Every run in a folder, by default ./runs, the most recently used first."""
    found = [RunDir(path.parent) for path in folder.glob("*/config.toml")]
    return sorted(found, key=_last_used, reverse=True)


def _last_used(run: RunDir) -> float:
    found = []
    for path in (run.config, run.status):
        with suppress(OSError):  # there is no status yet, or the run has just been removed
            found.append(path.stat().st_mtime)
    return max(found, default=0.0)


def find(name: str | None) -> RunDir:
    """The run of that name (or folder); without a name the only one that is up, or the most recent. Raises ConfigError."""
    runs = all_runs()
    if name is not None:
        if (Path(name) / "config.toml").is_file():
            return RunDir(Path(name))
        for run in runs:
            if run.name == name:
                return run
        if Path(name).is_file():
            raise ConfigError(f"{name} is a file, not a run: `headrace eval`, `demo` and `push` take the file of an export")
        raise ConfigError(f"no run named {name!r} in {RUNS}/; {nearest(name, (run.name for run in runs))}")
    up = [run for run in runs if is_up(run)]
    if len(up) > 1:
        raise ConfigError(f"several runs are up; name one of them: {', '.join(run.name for run in up)}")
    if not runs:
        raise ConfigError(f"there is no run in {RUNS}/ yet; start one with `headrace up --env mario`")
    return up[0] if up else runs[0]


def chosen(parsed: argparse.Namespace) -> RunDir:
    """The run of a command line, named by --run or by position. Raises ConfigError."""
    names = [name for name in (getattr(parsed, "run_flag", None), getattr(parsed, "run", None)) if name is not None]
    if len(set(names)) > 1:
        raise ConfigError(f"{' and '.join(names)}: name one run")
    return find(names[0] if names else None)


@contextmanager
def locked(run: RunDir) -> Iterator[None]:
    """Locks the run's name until the end of the block, or of this process. Raises AlreadyUp.

    The lock lies beside the run's folder: it holds while that folder is made, moved aside or deleted. The lock of a name without
    a folder is removed in the end, with the folders that were made for it.
    """
    made = [folder for folder in (run.lock.parent, run.path.parent) if not folder.exists()]
    with ExitStack() as at_end:
        if os.name != "posix":  # Windows removes no open file, so this one when it is closed, and never another's
            at_end.callback(_tidy, run, made)
        file = at_end.enter_context(_lock(run))
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        finally:
            file.truncate(0)
            if os.name == "posix":
                _tidy(run, made)
            unlock(file)


def _lock(run: RunDir) -> BinaryIO:
    """The open, locked file of a run. Raises AlreadyUp."""
    for _ in range(LOCK_TRIES):
        run.path.parent.mkdir(parents=True, exist_ok=True)
        run.lock.parent.mkdir(mode=0o700, exist_ok=True)
        try:
            file = open_file(run.lock, "a+b", 0, 0o600)
        except FileNotFoundError:  # another process has just removed the folder of locks
            continue
        try:
            if try_lock(file) and run.lock.exists() and os.path.samestat(os.fstat(file.fileno()), run.lock.stat()):
                return file
        except OSError:
            file.close()
            raise
        file.close()  # locked by another process, or removed by it
        time.sleep(LOCK_PAUSE_SECONDS)
    raise AlreadyUp(run, supervisor_pid(run))


def _tidy(run: RunDir, made: Sequence[Path]) -> None:
    """Removes the lock of a name without a folder, and the folders that were made for it if they are empty then."""
    if not run.path.exists():
        with suppress(OSError):
            run.lock.unlink()
            for folder in made:
                folder.rmdir()


def is_up(run: RunDir) -> bool:
    """True while a supervisor has the run. The kernel's lock says so, not the content of a file."""
    try:
        with open_file(run.lock, "r+b") as file:
            return is_locked(file)
    except OSError:
        return False


def supervisor_pid(run: RunDir) -> int | None:
    """The pid that the supervisor wrote into the lock file."""
    try:
        return int(read_text(run.lock))
    except (OSError, ValueError):
        return None


def read_status(run: RunDir) -> dict[str, Any] | None:
    """The newest status.json, or None."""
    try:
        return read_document(read_bytes(run.status))
    except OSError:
        return None


def refused_orders(run: RunDir) -> str:
    """A sentence where a run that is up is one process, which takes no orders; empty for any other run."""
    status = read_status(run) or {}
    if {process["pid"] for process in status.get("processes", ())} != {status.get("pid")}:
        return ""
    return f"run {run.name} is one process (--serial) and takes no orders; `headrace down {run.name}` ends it"


def read_steps(run: RunDir) -> int:
    """Environment steps that the run has done, as of the newest status.json."""
    return int((read_status(run) or {}).get("steps") or 0)


def learns_from_rollouts(run: RunDir) -> bool:
    """True where the learner takes whole chunks, once each, and does not sample from a buffer. Raises SpecError."""
    return run.spec.is_file() and read_spec(read_bytes(run.spec)).unit == "rollouts"


def set_aside(run: RunDir) -> Path | None:
    """Moves a run's folder, without its keys, to NAME.1, NAME.2, … and returns the new path; None where there is no folder."""
    if not run.path.exists():
        return None
    target = aside_path(run.path)
    writing.replace(run.path, target)
    with suppress(OSError):  # on a full disk: then the folder is kept
        (target / ASIDE).touch()
    trust.moved(run, RunDir(target))
    if (kept := RunDir(target).key_folder).exists():
        run.make_private()
        writing.replace(kept, run.key_folder)
    return target


def remove_aside(run: RunDir, kept: int) -> list[Path]:
    """Removes the folders that `set_aside` has made of a run, all but the newest `kept`. Returns them. Raises OSError."""
    oldest = [path for _, path in sorted(_aside(run.path).items()) if (path / ASIDE).exists()][: -kept or None]
    removed = [path for path in oldest if not is_up(RunDir(path))]
    for path in removed:
        remove(RunDir(path))
    return removed


def keep(run: RunDir) -> None:
    """A run that was moved aside and is started again is one of its own: `remove_aside` leaves it. Raises OSError."""
    writing.remove(run.path / ASIDE)


def remove(run: RunDir) -> None:
    """Deletes the run's folder. Raises OSError."""
    writing.patiently(lambda: shutil.rmtree(run.path))
    trust.forget(run)


def aside_path(path: Path) -> Path:
    """NAME.1, or NAME with a number above all that there are."""
    return path.with_name(f"{path.name}.{max(_aside(path), default=0) + 1}")


def _aside(folder: Path) -> dict[int, Path]:
    """The folders that were made of one by moving it aside, by number."""
    found = ((path.name.removeprefix(f"{folder.name}."), path) for path in folder.parent.glob(f"{folder.name}.*"))
    return {int(number): path for number, path in found if number.isdigit()}


def read_spec_of(run: RunDir) -> ExperienceSpec:
    """The spec of the experience that a run has stored. Raises ConfigError."""
    if not run.spec.is_file():
        raise ConfigError(f"run {run.name} has no spec.json, so nothing has been recorded yet")
    return read_spec(read_bytes(run.spec))
