"""A whole update as one launch: recorded once as a CUDA graph (ROCm's likewise), then repeated on other batches.

What takes an update of a small network its time on a large device is telling it some hundred kernels one by one. A record that
does something else than the update it is made of would harm a run in silence, so it is tried once beside it before it is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from learner.devices.capabilities import capabilities, fork_random
from learner.updates.base import Algorithm, Batch
from learner.updates.compile import one_line
from learner.updates.optimiser import Answer, Optimiser

LEAST_COSINE = 0.99  # between what both change the parameters by: some kernels add up in any order
TOLERANCE = 0.02  # of metrics, and of the size of the change


class RecordError(RuntimeError):
    """Why an update is not recorded, in one line."""


class Graph(Protocol):
    """Work of a device that can be repeated."""

    def record(self, work: Callable[[], Answer]) -> Answer:
        """Takes in what `work` tells the device, without doing it. What it answers will be filled by each launch."""

    def launch(self) -> None:
        """Does it."""


class CudaGraph:
    """CUDA's, or ROCm's."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    def record(self, work: Callable[[], Answer]) -> Answer:
        """Takes in what `work` tells the device."""
        # thread_local: weights are being published by another thread, which copies them to the host.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            return work()

    def launch(self) -> None:
        """Does it."""
        self._graph.replay()


class Recorded:
    """An update that is launched as one. Its answer lasts until the next."""

    def __init__(self, optimiser: Optimiser, algorithm: Algorithm[Batch], batch: Batch, graph: Graph) -> None:
        """Records it for batches like this one, and does not do it."""
        self._batch = batch.each(torch.clone)
        self._graph = graph
        self._answer = graph.record(lambda: optimiser.compute(algorithm, self._batch))

    def __call__(self, batch: Batch) -> Answer:
        """Does the update by another batch."""
        for mine, theirs in zip(self._batch.tensors(), batch.tensors(), strict=True):
            mine.copy_(theirs)
        self._graph.launch()
        return self._answer


def record(
    optimiser: Optimiser, algorithm: Algorithm[Batch], batch: Batch, make_graph: Callable[[], Graph] = CudaGraph
) -> Answer:
    """Does an update as usual, and has all further ones launched as one if the record of it does the same.

    Call it when some updates have been done: kernels have been chosen then, and Adam has its moments. Raises RecordError, having
    changed nothing.
    """
    device = optimiser.device
    if not capabilities(device).graphs:
        raise RecordError("this device takes kernels one by one")
    if optimiser.precision == "float16":
        raise RecordError("the host keeps the loss scale of float16")
    parameters, state = algorithm.parameters(), optimiser.changed_tensors(algorithm)
    before, old = _held(state), _held(parameters)
    with fork_random(device):
        metrics, priorities = optimiser.compute(algorithm, batch)
    after, usual = _held(state), _change(old, parameters)
    _restore(state, before)
    try:
        recorded = Recorded(optimiser, algorithm, batch, make_graph())
        reason = _difference((metrics, priorities), recorded(batch), usual, _change(old, parameters))
    except RuntimeError as error:
        optimiser.forget_gradient()
        reason = one_line(error)
    _restore(state, before if reason else after)
    if reason:
        raise RecordError(reason)
    optimiser.recorded = recorded
    return metrics, priorities


def _difference(expected: Answer, found: Answer, usual: Tensor, launched: Tensor) -> str:
    """What a record does otherwise than the update that it is made of; empty when nothing."""
    for name, value in expected[0].items():
        if not math.isclose(float(value), float(found[0][name]), rel_tol=TOLERANCE, abs_tol=1e-6):
            return f"its record finds another {name}: {float(found[0][name]):.6g}, not {float(value):.6g}"
    if not torch.allclose(expected[1], found[1], rtol=TOLERANCE, atol=TOLERANCE * float(expected[1].abs().mean())):
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
