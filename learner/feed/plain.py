"""Batches of transitions or sequences where copies and computation do not overlap: on the CPU, and on devices without streams."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.feed.base import DeviceBatch, Slots, mean_version
from learner.weights.checkpoint import as_array
from replay.client.base import BatchSampler, SampledBatch
from transport.experience import ExperienceSpec
from transport.metrics import Metrics

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class PlainFeed:
    """Brings each batch to the device when it is needed; on the CPU it stays in replay's slot until the update is done."""

    def __init__(
        self, sampler: BatchSampler, spec: ExperienceSpec, slots: Slots, metrics: Metrics, updates_per_epoch: int
    ) -> None:
        self._sampler, self._spec, self._metrics = sampler, spec, metrics
        self._slots = slots
        self.updates_per_epoch = updates_per_epoch
        self._in_use: dict[int, SampledBatch] = {}

    @property
    def episodes(self) -> int:
        return self._sampler.episodes

    @property
    def steps(self) -> list[int]:
        return self._sampler.steps

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            sampled = self._sampler.next(timeout_seconds)
        if sampled is None:
            return None
        self._in_use[sampled.slot] = sampled
        with self._metrics.phase("copy"):
            batch = self._slots.batch(sampled)
        return DeviceBatch(batch, mean_version(sampled.arrays, self._spec), sampled.slot, sampled.arrays["key"])

    def done(self, drawn: DeviceBatch, priorities: Tensor | np.ndarray | None) -> None:
        """Waits for the device, where there are priorities."""
        sampled = self._in_use.pop(drawn.place)
        if priorities is None:
            self._sampler.release(sampled)
            return
        with self._metrics.phase("update"):
            new = as_array(priorities)
        with self._metrics.phase("send"):
            self._sampler.answer(sampled, new)

    def end_epoch(self, version: int) -> None:
        pass

    def poll(self) -> None:
        self._sampler.poll()

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()
