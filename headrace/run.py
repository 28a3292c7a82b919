"""`headrace.train`: starts a run in the background through the `headrace` command. `Run`: a run that exists."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.errors import ERRORS, ConfigurationError, HeadraceError, RunFailedError, raises_one_line
from headrace.names import reference, run_folder

if TYPE_CHECKING:
    import gymnasium

    from headrace.policy import Policy

Setting = str | Callable[..., Any] | Mapping[str, Any]  # a name; the object that it names; or a section with its options
NameOf = Callable[[object, str], str]  # as `reference`
POLL_SECONDS = 0.2
POSIX = os.name == "posix"
ERROR = "headrace: "  # begins the error line of the command
SWITCHES = {"fresh": "fresh", "resume": "resume", "trust": "trust-config"}  # flags without a value
MAIN_KEYS = {"env": "id", "algorithm": "name", "actors": "count"}
CALLED = {"env.id": "env", "algorithm.name": "algo"}


def train(
    env: Setting | gymnasium.Env,
    algo: Setting | None = None,
    actors: int | Mapping[str, Any] | None = None,
    run: str | None = None,
    serial: bool = False,
    **options: Any,
) -> Run:
    """Starts a run, or resumes the stopped run of that name, and returns when its processes are ready.

    `env`, `algo` and `actors` are the flags of `headrace up`. Each may be a mapping with further options of its section, such as
    {"name": "dqn", "gamma": 0.995}. A class or a function can be given instead of its `module:qualname`.

    `options` are all other settings: `total_steps=1e6`, `seed=3`, `device="cpu"`, `stop_after="10m"`, `stop_at="07:00"`,
    `stop_at_return=475`, `fresh=True`, `resume=True`, `config="mine.toml"`, `preset="cartpole"`, and sections as mappings:
    `learner={"batch_size": 512}`.
    `trust=True` allows settings that name code in the file `config`, or in a run that this account has not made here.

    The run goes on when this process ends; `total_steps`, `stop_after`, `stop_at`, `Run.stop` and `headrace down` end it. Ctrl-C
    before `train` returns stops it, too. Raises ConfigurationError, RefusedError or RunFailedError with the command's error
    line.

    `serial=True` runs everything in this process, as `headrace up --serial` does, and returns when the run is over. Then every
    class and function may be defined right here, in a notebook too, and `env` may be an environment that exists already: the
    run steps this one only, so it is not evaluated. What their code raises is raised here.
    """
    given = {"env": _section("env", env), "algorithm": _section("algorithm", algo), "actors": _section("actors", actors)}
    if serial:
        return _train_here(given | {"run": run} | options)
    arguments = ["up", "--detach", "--json", *_flags(given | {"run": run} | options)]
    status = json.loads(_command(arguments, Path.cwd(), show=True))
    return Run(Path("runs") / status["run"])


def _train_here(settings: dict[str, Any]) -> Run:
    import gymnasium

    from headrace.serial import names_here, train_here

    if isinstance(settings["env"].get("id"), gymnasium.Env):  # there is one of it
        actors, evaluator = ({} | (settings.get(name) or {}) for name in ("actors", "evaluator"))
        several = actors.setdefault("envs_per_actor", 1) not in (1, "1")
        if several or evaluator.setdefault("enabled", False) not in (False, "false"):
            raise ConfigurationError("env: the environment exists, and a run would need several: pass a function that makes one")
        settings |= {"actors": actors, "evaluator": evaluator}
    return Run(train_here(_flags(settings, name_of=names_here())))


class Run:
    """A run: its folder and, while it is up, its processes."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """`path` is a folder such as runs/NAME, or a run's name. Raises ConfigurationError if there is no such run."""
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
        """True while the run's supervisor is running."""
        from deploy import runs
        from transport.run_dir import RunDir

        return runs.is_up(RunDir(self.path))

    @raises_one_line
    def status(self) -> dict[str, Any]:
        """The document of `headrace status --json`; the value of a key without a figure is None."""
        from deploy.recorded.status import current_status
        from transport.run_dir import RunDir

        return current_status(RunDir(self.path))

    def wait(self, timeout_seconds: float | None = None) -> dict[str, Any]:
        """Waits until the run ends and returns its last status.

        Raises RunFailedError if it failed, and TimeoutError after `timeout_seconds`. Ctrl-C ends the waiting, not the run; use
        `with headrace.train(…) as run:` to stop it then, too.
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
        """Stops the run's processes in order, after a checkpoint. Does nothing if the run is not up. `train` resumes it."""
        _command(["down", str(self.path)], self.path.parent, show=False)

    def policy(self, best: bool = False, trust: bool = False) -> Policy:
        """As `load`: the policy with the newest weights on disk, or with the evaluator's best. Raises ConfigurationError."""
        from headrace.policy import load

        return load(self, best=best, trust=trust)


def _section(name: str, value: Any) -> dict[str, Any]:
    """The settings of a section. A value that is not a mapping is that of the section's main key."""
    if value is None:
        return {}
    return dict(value) if isinstance(value, Mapping) else {MAIN_KEYS[name]: value}


def _flags(settings: Mapping[str, Any], prefix: str = "", name_of: NameOf = reference) -> list[str]:
    """The settings as flags of the command: {"learner": {"batch_size": 64}} gives --learner.batch-size=64."""
    flags = []
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            flags += _flags(value, f"{name}.", name_of)
        elif key in SWITCHES and not prefix:
            flags += [f"--{SWITCHES[key]}"] if value else []
        elif value is not None:
            flags.append(f"--{name.replace('_', '-')}={_text(name, value, name_of)}")
    return flags


def _text(name: str, value: Any, name_of: NameOf) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return ",".join(_text(name, part, name_of) for part in value)
    if isinstance(value, Real | Path):  # numbers of numpy, too
        return str(value)
    return name_of(value, CALLED.get(name, name))


def _command(arguments: list[str], folder: Path, show: bool) -> str:
    """Runs `headrace ARGUMENTS` and returns its stdout. `show` prints its stderr while it runs, but for the error.

    Raises HeadraceError with the error line of the command. On Ctrl-C the command is interrupted, too, and has ended when
    KeyboardInterrupt is raised.
    """
    from deploy.children import child_environment, python_command

    environment = child_environment()
    environment["PYTHONPATH"] = os.pathsep.join([environment["PYTHONPATH"], *_own_folders()])
    child = subprocess.Popen(
        python_command("headrace", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
        cwd=folder,
        start_new_session=POSIX,  # so that Ctrl-C in a terminal interrupts the command once, from here
    )
    assert child.stdout is not None and child.stderr is not None
    lines: list[str] = []
    with child:
        try:
            _read(child.stderr, lines, show)
            output = child.stdout.read()
        except KeyboardInterrupt:
            if POSIX:
                child.send_signal(signal.SIGINT)
            _read(child.stderr, lines, show)
            raise
    if child.returncode:
        raise _error(child.returncode, lines)
    return output


def _read(stream: Iterable[str], lines: list[str], show: bool) -> None:
    for line in filter(str.strip, stream):
        lines.append(line.strip())
        if show and not line.startswith(ERROR):
            print(line, end="", flush=True)


def _own_folders() -> list[str]:
    """The folders of sys.path outside the installation, so that other processes can import the user's modules as well."""
    installed = tuple(f"{prefix}{os.sep}" for prefix in (sys.prefix, sys.base_prefix))
    return [entry for entry in sys.path if entry and os.path.isdir(entry) and not entry.startswith(installed)]


def _error(status: int, lines: list[str]) -> HeadraceError:
    """`lines`: of the command's stderr. The last one that begins with ERROR is the message."""
    last = lines[-1] if lines else f"the command ended with status {status}"
    message = next((line for line in reversed(lines) if line.startswith(ERROR)), last)
    return ERRORS.get(status, RunFailedError)(message.removeprefix(ERROR))
