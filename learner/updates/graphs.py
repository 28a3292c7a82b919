"""A whole step as one launch: recorded once as a CUDA graph (ROCm's likewise), then repeated on other batches.

A step of a small network on a large device takes its time because some hundred kernels are launched one by one. A record that
does something else than the step would harm a run in silence, so both are done once and compared before the record is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from learner.devices.capabilities import capabilities, fork_random
from learner.updates.base import LossFunction, Outcome
from learner.updates.compile import one_line
from learner.updates.internal import Stepper
from learner.updates.trees import leaves, mapped

LEAST_COSINE = 0.99  # between what both change the parameters by: some kernels add up in any order
TOLERANCE = 0.02  # of metrics, and of the size of the change


class RecordError(RuntimeError):
    """Why a step is not recorded, in one line."""


class Graph(Protocol):
    """Work of a device that can be repeated."""

    def record(self, work: Callable[[], Outcome]) -> Outcome:
        """Takes in what `work` tells the device, without doing it. What it answers will be filled by each launch."""

    def launch(self) -> None:
        """Does it."""


class CudaGraph:
    """CUDA's, or ROCm's."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Outcome]) -> Outcome:
        """Takes in what `work` tells the device."""
        # thread_local: weights are being published by another thread, which copies them to the host.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return work()

    def launch(self) -> None:
        """Does it."""
        self._graph.replay()


class Recorded:
    """A step that is launched as one. Its outcome lasts until the next."""

    def __init__(self, optimiser: Stepper, loss: LossFunction, inputs: tuple[Any, ...], graph: Graph) -> None:
        """Records it for inputs like these, and does not do it."""
        self._inputs = mapped(Tensor.clone, inputs)
        self._graph = graph
        self._outcome = graph.record(lambda: optimiser.take(loss, self._inputs))

    def __call__(self, inputs: tuple[Any, ...]) -> Outcome:
        """The step by other inputs."""
        for mine, theirs in zip(leaves(self._inputs), leaves(inputs), strict=True):
            mine.copy_(theirs)
        self._graph.launch()
        return self._outcome


def record(
    optimiser: Stepper, loss: LossFunction, inputs: tuple[Any, ...], make_graph: Callable[[], Graph] | None = None
) -> tuple[Outcome, Recorded]:
    """Does a step as it stands, and records it if the record of it does the same; inputs: (items, *shared).

    Raises RecordError, having changed nothing.
    """
    device = optimiser.device
    if not capabilities(device).graphs:
        raise RecordError("this device takes kernels one by one")
    if optimiser.precision == "float16":
        raise RecordError("the host keeps the loss scale of float16")
    parameters, state = optimiser.parameters, optimiser.changed_tensors()
    before, old = _held(state), _held(parameters)
    with fork_random(device):
        outcome = optimiser.take(loss, inputs)
    after, usual = _held(state), _change(old, parameters)
    _restore(state, before)
    try:
        recorded = Recorded(optimiser, loss, inputs, (make_graph or CudaGraph)())
        reason = _difference(outcome, recorded(inputs), usual, _change(old, parameters))
    except RuntimeError as error:
        optimiser.forget_gradient()
        reason = one_line(error)
    _restore(state, before if reason else after)
    if reason:
        raise RecordError(reason)
    return outcome, recorded


def _difference(expected: Outcome, found: Outcome, usual: Tensor, launched: Tensor) -> str:
    """What a record does otherwise than the step that it is made of; empty when nothing."""
    for name, value in expected.metrics.items():
        other = float(found.metrics[name])
        if not math.isclose(float(value), other, rel_tol=TOLERANCE, abs_tol=1e-6):
            return f"its record finds another {name}: {other:.6g}, not {float(value):.6g}"
    if expected.priorities is not None and found.priorities is not None:
        tolerance = TOLERANCE * float(expected.priorities.abs().mean())
        if not torch.allclose(expected.priorities, found.priorities, rtol=TOLERANCE, atol=tolerance):
            return "its record finds other priorities"
    sizes = float(usual.norm()), float(launched.norm())
    if not math.isclose(*sizes, rel_tol=TOLERANCE) or float(usual @ launched) < LEAST_COSINE * sizes[0] * sizes[1]:
        return f"its record changes the weights otherwise (by {sizes[1]:.6g}, not {sizes[0]:.6g})"
    return ""


def _change(before: Sequence[Tensor], after: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return torch.cat([(new - old).flatten().float() for old, new in zip(before, after, strict=True)])


def _held(tensors: Sequence[Tensor]) -> list[Tensor]:
    return [tensor.detach().clone() for tensor in tensors]


def _restore(state: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor, value in zip(state, values, strict=True):
            tensor.copy_(value)
