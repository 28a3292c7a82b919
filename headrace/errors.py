"""The exceptions of this package. Each message is one line: what happened, why, and what to do."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class HeadraceError(Exception):
    """The base of all errors that this package raises."""


class ConfigurationError(HeadraceError, ValueError):
    """A setting, a name, a file, an environment or an argument cannot be used."""


class RefusedError(HeadraceError):
    """The run cannot start now: it is already up, its address is unsafe, or there is too little memory or disk space."""


class RunFailedError(HeadraceError):
    """A run failed; the message names the process and the cause."""


ERRORS: dict[int, type[HeadraceError]] = {1: RunFailedError, 2: ConfigurationError, 3: RefusedError}  # by exit status


@contextmanager
def one_line() -> Iterator[None]:
    """Turns errors of the other packages into ConfigurationError with the same message, on one line."""
    try:
        yield
    except (HeadraceError, KeyboardInterrupt):
        raise
    except (ValueError, RuntimeError, OSError) as error:
        raise ConfigurationError(" ".join(str(error).split()) or type(error).__name__) from error


def raises_one_line(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a function with `one_line`."""

    @functools.wraps(function)
    def wrapped(*arguments: Parameters.args, **options: Parameters.kwargs) -> Result:
        with one_line():
            return function(*arguments, **options)

    return wrapped
