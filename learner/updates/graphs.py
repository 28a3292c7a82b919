"""CUDA graphs (ROCm's too): a whole step is recorded once, then launched as one on other batches.

A step of a small network on a large device is slow because it launches some hundred kernels one by one. A graph that computes
something else than the step would harm a run unnoticed, so both are run once and compared before the graph is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from learner.devices.capabilities import capabilities, fork_random
from learner.updates.base import LossFunction, Outcome, Stepper
from learner.updates.compile import one_line
from learner.updates.trees import leaves, mapped

LEAST_COSINE = 0.99  # between the parameter changes of both: some kernels sum in any order
TOLERANCE = 0.02  # relative, of metrics and of the norm of the parameter change


class RecordError(RuntimeError):
    """A step cannot be recorded; the message says why in one line."""


class Graph(Protocol):
    """Work of a device that is recorded once and launched many times."""

    def record(self, work: Callable[[], Outcome]) -> Outcome:
        """Records the kernels that `work` launches, without running them. Each launch writes the tensors of its result."""

    def launch(self) -> None: ...


class CudaGraph:
    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Outcome]) -> Outcome:
        # thread_local: another thread may be copying published weights to the host.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return work()

    def launch(self) -> None:
        self._graph.replay()


class RecordedStep:
    """A step that is launched as one graph. The next call overwrites its outcome."""

    def __init__(self, optimiser: Stepper, loss: LossFunction, inputs: tuple[Any, ...], graph: Graph) -> None:
        """Records the step for inputs of these shapes, without taking it."""
        self._inputs = mapped(Tensor.clone, inputs)
        self._graph = graph
        self._outcome = graph.record(lambda: optimiser.step_eagerly(loss, self._inputs))

    def __call__(self, inputs: tuple[Any, ...]) -> Outcome:
        for own, given in zip(leaves(self._inputs), leaves(inputs), strict=True):
            own.copy_(given)
        self._graph.launch()
        return self._outcome


def record(
    optimiser: Stepper, loss: LossFunction, inputs: tuple[Any, ...], make_graph: Callable[[], Graph] | None = None
) -> tuple[Outcome, RecordedStep]:
    """Takes a step eagerly, records it, and checks that the graph does the same; inputs: (items, *shared).

    Raises RecordError, having changed nothing.
    """
    device = optimiser.device
    if not capabilities(device).graphs:
        raise RecordError("this device has no graphs")
    if optimiser.precision == "float16":
        raise RecordError("with float16 the host keeps the loss scale")
    parameters, state = optimiser.parameters, optimiser.changed_tensors()
    before, old = _copies(state), _copies(parameters)
    with fork_random(device):
        outcome = optimiser.step_eagerly(loss, inputs)
    after, eager = _copies(state), _change(old, parameters)
    _restore(state, before)
    parts = optimiser.parts
    try:
        recorded = RecordedStep(optimiser, loss, inputs, (make_graph or CudaGraph)())
        if optimiser.parts != parts:
            raise RuntimeError("a recorded update does not fit into memory beside the others")
        reason = _difference(outcome, recorded(inputs), eager, _change(old, parameters))
    except (RuntimeError, MemoryError) as error:  # MemoryError: not even a single item's step fits beside the others
        optimiser.forget_gradient()
        reason = one_line(error)
    _restore(state, before if reason else after)
    if reason:
        optimiser.parts = parts
        raise RecordError(reason)
    return outcome, recorded


def _difference(expected: Outcome, found: Outcome, eager: Tensor, launched: Tensor) -> str:
    """How the graph differs from the eager step, in one line; empty if it does not. `eager` and `launched`: the changes of the
    parameters."""
    for name, value in expected.metrics.items():
        other = float(found.metrics[name])
        if not math.isclose(float(value), other, rel_tol=TOLERANCE, abs_tol=1e-6):
            return f"the graph computes another {name}: {other:.6g}, not {float(value):.6g}"
    if expected.priorities is not None and found.priorities is not None:
        tolerance = TOLERANCE * float(expected.priorities.abs().mean())
        if not torch.allclose(expected.priorities, found.priorities, rtol=TOLERANCE, atol=tolerance):
            return "the graph computes other priorities"
    sizes = float(eager.norm()), float(launched.norm())
    if not math.isclose(*sizes, rel_tol=TOLERANCE) or float(eager @ launched) < LEAST_COSINE * sizes[0] * sizes[1]:
        return f"the graph changes the weights by {sizes[1]:.6g}, not by {sizes[0]:.6g}, or in another direction"
    return ""


def _change(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([(new - old).flatten().float() for old, new in zip(before, after, strict=True)])


def _copies(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(state, values, strict=True):
            tensor.copy_(value)
