"""torch.compile for the loss of an algorithm. It may take minutes or fail; neither stops the run."""

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

from learner.devices.capabilities import make_current
from learner.updates.base import LossFunction, Stepper
from transport.files.writing import patiently, remove

COMPILE_SECONDS = 600.0  # limit; then the run continues without it
POLL_SECONDS = 0.2
THREAD = "compile"


class CompileError(RuntimeError):
    """The loss cannot be compiled; the message says why in one line."""


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Within the block torch's compiler keeps its files in `folder`.

    Not in the folder that all runs share: a killed process leaves half a library there, with which the next one fails. Files of a
    block that did not end are deleted. Raises CompileError.
    """
    unfinished = folder / "unfinished"
    try:
        if unfinished.exists():
            patiently(lambda: shutil.rmtree(folder))
        folder.mkdir(parents=True, exist_ok=True)
        unfinished.touch()
    except OSError as error:
        raise CompileError(f"cannot write {folder}: {error.strerror}") from error
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(folder)
    yield
    remove(unfinished)


def compile_loss(
    optimiser: Stepper,
    loss: LossFunction,
    example: tuple[Any, ...],
    waiting: Callable[[], bool],
    limit_seconds: float = COMPILE_SECONDS,
) -> LossFunction:
    """Compiles the loss and its backward pass for inputs with the shapes of the example (items, *shared).

    Compiles in a second thread and calls `waiting` meanwhile. When `waiting` returns False, or after `limit_seconds`, the thread
    is abandoned, which does not change the training. Compiles a function and wraps no module, so weights keep their names.
    Raises CompileError.
    """
    compiled: LossFunction = torch.compile(loss, dynamic=False)
    kept = [(buffer, buffer.clone()) for buffer in optimiser.buffers]  # running statistics, which the example must not change
    failure: list[BaseException] = []
    device = optimiser.parameters[0].device

    def work() -> None:
        try:
            make_current(device)
            with optimiser.autocast():
                value = compiled(*example).value
            assert isinstance(value, Tensor)
            torch.autograd.grad(value, optimiser.parameters)  # compiles the backward pass, and leaves no gradient behind
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


def still_compiling() -> bool:
    """True if an abandoned compilation is still running: the interpreter would wait for it at exit."""
    return any(thread.name == THREAD for thread in threading.enumerate())


def one_line(error: BaseException) -> str:
    """The error's first paragraph in one line, without the advice that torch adds."""
    head = str(error).strip().partition("\n\n")[0]
    return " ".join(head.split())[:300] or type(error).__name__
