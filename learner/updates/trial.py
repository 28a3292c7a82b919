"""Whether a recorded graph is faster than the same steps launched kernel by kernel, measured on steps that train."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from learner.devices.capabilities import synchronise
from learner.updates.base import Outcome

TRIED_STEPS = 10  # of each way
GAIN = 0.95  # a graph that takes more of the eager time than this is not worth its memory
LONGEST_SECONDS = 0.02  # of a step for which a graph is tried: a thousand kernels are launched in less


class GraphTimer:
    """Times eager steps, then launches of the graph, each from an idle device until it is idle again."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._eager: list[float] = []  # seconds
        self._launched: list[float] = []

    def eager(self, step: Callable[[], Outcome]) -> Outcome:
        return self._timed(self._eager, step)

    def launched(self, step: Callable[[], Outcome]) -> Outcome:
        return self._timed(self._launched, step)

    @property
    def over(self) -> bool:
        return len(self._launched) >= TRIED_STEPS

    @property
    def graph_may_be_faster(self) -> bool:
        return statistics.median(self._eager) < LONGEST_SECONDS

    @property
    def graph_is_faster(self) -> bool:
        return statistics.median(self._launched) < GAIN * statistics.median(self._eager)

    @property
    def times(self) -> str:
        graph, eager = (1000 * statistics.median(seconds) for seconds in (self._launched, self._eager))
        return f"{graph:.3g} ms as a graph, {eager:.3g} ms without"

    def _timed(self, seconds: list[float], step: Callable[[], Outcome]) -> Outcome:
        synchronise(self._device)
        begun = time.perf_counter()
        outcome = step()
        synchronise(self._device)
        seconds.append(time.perf_counter() - begun)
        return outcome
