"""`torch.compile` for the loss of an algorithm. It may take minutes, and may not work at all: neither may harm a run."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner.updates.base import LossFunction
from learner.updates.internal import Stepper

COMPILE_SECONDS = 600.0  # then the run goes on without
POLL_SECONDS = 0.2
THREAD = "compile"


class CompileError(RuntimeError):
    """Why the loss cannot be compiled here, in one line."""


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Within, torch's compiler keeps its files in `folder`, not in one that all runs share: a process that is killed leaves half
    a library there, on which the next one fails. What an unfinished block left is deleted. Raises CompileError.
    """
    unfinished = folder / "unfinished"
    try:
        if unfinished.exists():
            shutil.rmtree(folder)
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    except OSError as error:
        raise CompileError(f"cannot write {folder}: {error.strerror}") from error
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    yield
    unfinished.unlink(missing_ok=True)


def compile_loss(
    optimiser: Stepper,
    loss: LossFunction,
    example: tuple[Any, ...],
    waiting: Callable[[], bool],
    limit_seconds: float = COMPILE_SECONDS,
) -> LossFunction:
    """The loss, compiled for inputs like the example (items, *shared), its backward pass included.

    Compiles in a second thread and calls `waiting` all the while: when it says False, or after `limit_seconds`, that thread is
    abandoned, which changes nothing that is learned. Compiles a function and wraps no module, so weights keep their names.
    Raises CompileError.
    """
    compiled: LossFunction = torch.compile(loss, dynamic=False)
    kept = [(buffer, buffer.clone()) for buffer in optimiser.buffers]  # running statistics, which the example must not move
    failure: list[BaseException] = []

    def work() -> None:
        try:
            with optimiser.autocast():
                value = compiled(*example).value
            assert isinstance(value, Tensor)
            torch.autograd.grad(value, optimiser.parameters)  # compiles the other direction, and leaves no gradient behind
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=work, daemon=True, name=THREAD)
    thread.start()
    waited = 0.0
    while thread.is_alive():
        if waited >= limit_seconds:
            raise CompileError(f"it took more than {limit_seconds:g} s")
        if not waiting():
            raise CompileError("the run is stopping")
        thread.join(POLL_SECONDS)
        waited += POLL_SECONDS
    for buffer, before in kept:
        buffer.copy_(before)
    if failure:
        raise CompileError(one_line(failure[0]))
    return compiled


def still_at_work() -> bool:
    """Whether a compilation was abandoned that has not ended: the process cannot end in the usual way, either."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def one_line(error: BaseException) -> str:
    """The reason without the advice that torch adds to it: its first lines, up to a blank one."""
    head = str(error).strip().partition("\n\n")[0]
    return " ".join(head.split())[:300] or type(error).__name__
