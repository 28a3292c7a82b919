"""`headrace.train`: starts a run in the background by the `headrace` command, and hands it back as a `Run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ConfigurationError, HeadraceError, RefusedError, RunFailedError, raises_one_line
from headrace.names import reference, run_folder

if TYPE_CHECKING:
    from headrace.policy import Policy

Setting = str | Callable[..., Any] | Mapping[str, Any]  # a name, what it stands for, or a section with its options
POLL_SECONDS = 0.2
SWITCHES = ("fresh", "resume")  # flags without a value
MAIN_KEYS = {"env": "id", "algorithm": "name", "actors": "count"}
CALLED = {"env.id": "env", "algorithm.name": "algo"}
KNOWN_AS = re.compile(r"\brun (\S+) is (?:up|already over)\b")  # how `headrace up --detach` names the run that it has started
ERRORS: dict[int, type[HeadraceError]] = {1: RunFailedError, 2: ConfigurationError, 3: RefusedError}


def train(
    env: Setting,
    algo: Setting | None = None,
    actors: int | Mapping[str, Any] | None = None,
    run: str | None = None,
    **options: Any,
) -> Run:
    """Starts a run, or resumes a stopped one of that name, and returns as soon as its processes are at work.

    `env`, `algo` and `actors` mean the same as the flags of `headrace up`; each may be a mapping with further options of its
    section, such as {"name": "dqn", "gamma": 0.995}. A class or a function may stand for its `module:qualname`.

    `options` are the other settings: `total_steps=1e6`, `seed=3`, `device="cpu"`, `stop_after="10m"`, `fresh=True`,
    `resume=True`, `config="mine.toml"`, `preset="cartpole"`, and sections as mappings: `learner={"batch_size": 512}`.

    The run goes on when this process ends; `total_steps`, `stop_after`, `Run.stop` and `headrace down` end it.
    Raises ConfigurationError, RefusedError or RunFailedError with the line that the command would print.
    """
    given = {"env": _section("env", env), "algorithm": _section("algorithm", algo), "actors": _section("actors", actors)}
    arguments = ["up", "--detach", *_flags(given | {"run": run} | options)]
    status, text = _command(arguments, Path.cwd(), show=True)
    if status:
        raise _error(status, text)
    named = KNOWN_AS.search(text)
    if named is None:
        raise RunFailedError(f"the command did not say which run it has started: {text.strip()[-200:]}")
    return Run(Path("runs") / named[1])


class Run:
    """A run's folder, and the processes that belong to it while it is up."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is a folder such as runs/NAME, or a run's name. Raises ConfigurationError where there is no run."""
        self.path = run_folder(path)

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    def __repr__(self) -> str:
        return f"headrace.Run({str(self.path)!r})"

    def __enter__(self) -> Run:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()

    @property
    def is_up(self) -> bool:
        """Whether a supervisor holds the run."""
        from deploy import runs
        from transport.run_dir import RunDir

        return runs.is_up(RunDir(self.path))

    @raises_one_line
    def status(self) -> dict[str, Any]:
        """The document of `headrace status --json`: a key without a figure holds None."""
        from deploy.cli.common import current_status
        from transport.run_dir import RunDir

        return current_status(RunDir(self.path))

    def wait(self, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Waits until the run is over and returns its last status.

        Raises RunFailedError where it failed, TimeoutError after `timeout_seconds`. Ctrl-C ends the waiting, not the run.
        """
        deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        while self.is_up:
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"run {self.name} is still up after {timeout_seconds:g} s")
            time.sleep(POLL_SECONDS)
        status = self.status()
        if status["state"] in ("failed", "dead"):
            raise RunFailedError(f"run {self.name} failed: {status.get('reason') or f'see {self.path}/logs'}")
        return status

    def stop(self) -> None:
        """Stops the run in order, checkpoint included; does nothing where it is not up. `train` resumes it."""
        status, text = _command(["down", str(self.path)], self.path.parent, show=False)
        if status:
            raise _error(status, text)

    def policy(self, best: bool = False) -> Policy:
        """The newest weights on disk, or the best that the evaluator has found. Raises ConfigurationError if there are none."""
        from headrace.policy import load

        return load(self, best=best)


def _section(name: str, value: Any) -> dict[str, Any]:
    """A section's settings; what is no mapping is its main key."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {MAIN_KEYS[name]: value}


def _flags(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """The settings as the command's flags: {"learner": {"batch_size": 64}} is --learner.batch-size=64."""
    flags = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flags += _flags(value, f"{name}.")
        elif key in SWITCHES and not prefix:
            flags += [f"--{name}"] if value else []
        elif value is not None:
            flags.append(f"--{name.replace('_', '-')}={_text(name, value)}")
    return flags


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_text(name, part) for part in value)
    if isinstance(value, int | float | Path):
        return str(value)
    return reference(value, CALLED.get(name, name))


def _command(arguments: list[str], folder: Path, show: bool) -> tuple[int, str]:
    """Runs `headrace ARGUMENTS` and gives its exit status and what it printed; `show`: line by line, as it comes."""
    from deploy.children import child_environment, python_command

    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], *_own_folders()])
    child = subprocess.Popen(
        python_command("headrace", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
        cwd=folder,
    )
    assert child.stdout is not None
    text = ""
    with child:
        for line in child.stdout:
            text += line
            if show and not line.startswith("headrace: "):
                print(line, end="", flush=True)
    return child.returncode, text


def _own_folders() -> list[str]:
    """Where this process finds modules besides its environment's: other processes shall find the user's there, too."""
    installed = tuple(f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    return [entry for entry in sys.path if entry and os.path.isdir(entry) and not entry.startswith(installed)]


def _error(status: int, text: str) -> HeadraceError:
    lines = [line for line in text.splitlines() if line.strip()] or [f"the command ended with status {status}"]
    said = next((line for line in reversed(lines) if line.startswith("headrace: ")), lines[-1])
    return ERRORS.get(status, RunFailedError)(said.removeprefix("headrace: "))
