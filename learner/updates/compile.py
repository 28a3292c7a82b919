"""`torch.compile` for the loss of an algorithm. It may take minutes, and may not work at all: neither may harm a run."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from learner.updates.base import Algorithm, BatchT

Loss = Callable[[Any, Tensor], tuple[Any, Tensor, dict[str, Tensor]]]
COMPILE_SECONDS = 600.0  # then the run goes on without
POLL_SECONDS = 0.2
THREAD = "compile"


class CompileError(RuntimeError):
    """Why the loss cannot be compiled here, in one line."""


@contextmanager
def cache_in(folder: Path) -> Iterator[None]:
    """Within, torch's compiler keeps what it makes in `folder`, not in one that all runs share: a process that is killed leaves
    half a library there, which fails whoever finds it next. What an unfinished block left is thrown away. Raises CompileError.
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
    algorithm: Algorithm[BatchT],
    example: tuple[BatchT, Tensor],
    autocast: Callable[[], AbstractContextManager[object]],
    waiting: Callable[[], bool],
    limit_seconds: float = COMPILE_SECONDS,
) -> Loss:
    """The algorithm's loss, compiled for batches like the example, its backward pass included.

    Compiles in a second thread and calls `waiting` all the while: when it says False, or after `limit_seconds`, that thread is
    abandoned, which changes nothing that is learned. Compiles a function and wraps no module, so weights keep their names.
    Raises CompileError.
    """
    compiled: Loss = torch.compile(algorithm.loss, dynamic=False)
    buffers = [buffer for module in algorithm.modules().values() for buffer in module.buffers()]
    kept = [buffer.clone() for buffer in buffers]  # running statistics, which the example must not move
    failure: list[BaseException] = []

    def work() -> None:
        try:
            with autocast():
                value, _, _ = compiled(*example)
            torch.autograd.grad(value, algorithm.parameters())  # compiles the other direction, and leaves no gradient behind
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
    for buffer, before in zip(buffers, kept, strict=True):
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
