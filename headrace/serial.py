"""`headrace.train(…, serial=True)`: the whole run in this process, with objects that no other process could import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import gymnasium

from actors.errors import EnvError
from deploy.cli.main import exit_status, parser_of
from deploy.cli.runs import up
from deploy.config.command_line import parse
from headrace.errors import ERRORS, ConfigurationError, RunFailedError
from headrace.names import reference

UNSAVED = "headrace.unsaved"  # the module in which objects of this process are found that no file has


class Given(gymnasium.Wrapper):
    """An environment that the user has made, and closes."""

    def close(self) -> None: ...


def names_here() -> Callable[[object, str], str]:
    """A function, for one call of `train`, that gives the name by which this process finds a class, a function or an environment;
    that of its module if it can be imported. It raises ConfigurationError. The next call may give the same names to others."""
    given: dict[str, object] = {}

    def name_here(thing: object, kind: str) -> str:
        if isinstance(thing, gymnasium.Env):
            return _keep(given, lambda: Given(thing), type(thing.unwrapped).__name__)
        try:
            return reference(thing, kind)
        except ConfigurationError:
            if not callable(thing):
                raise
            return _keep(given, thing, str(getattr(thing, "__name__", "")))

    return name_here


def _keep(given: dict[str, object], thing: object, wanted: str) -> str:
    module = sys.modules.setdefault(UNSAVED, ModuleType(UNSAVED))
    base = wanted if wanted.isidentifier() else "given"  # "<lambda>"
    name, number = base, 1
    while given.setdefault(name, thing) != thing:
        number += 1
        name = f"{base}_{number}"
    setattr(module, name, thing)
    return f"{UNSAVED}:{name}"


def train_here(flags: list[str]) -> Path:
    """Runs `headrace up --serial FLAGS` here until its end. Returns the run's folder.

    Raises ConfigurationError, RefusedError, RunFailedError, and what the user's code raises.
    """
    words = ["--serial", *flags]
    with _in_our_words():
        parsed = parse(parser_of("up", words), words, "up")
        ready = up.prepare_here(parsed)
    with ready:
        with _in_our_words():
            made = up.begin_here(ready, parsed)
        try:
            failed = made.run()
        except EnvError as error:
            raise ConfigurationError(str(error)) from error
    if failed:
        raise RunFailedError(f"run {ready.run.name} failed: {made.reason}")
    return ready.run.path  # absolute: an environment may have changed the working directory


@contextmanager
def _in_our_words() -> Iterator[None]:
    """Errors of the launch as those of this package."""
    try:
        yield
    except Exception as error:
        status = exit_status(error)
        if status is None or (isinstance(error, OSError) and up.is_of_user(error)):
            raise
        raise ERRORS[status](" ".join(str(error).split())) from error
