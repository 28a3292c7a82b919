"""Rollout batches: each is learned from once, and the next is requested when the new weights have been published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.feed.base import DeviceBatch, Slots, mean_version
from replay.client.base import BatchSampler, SampledBatch
from transport.experience import ExperienceSpec
from transport.metrics import Metrics

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor


class RolloutFeed:
    """One rollout batch per epoch. Its slot is released when the policy that was learned from it has been published."""

    updates_per_epoch = 1

    def __init__(self, sampler: BatchSampler, spec: ExperienceSpec, slots: Slots, metrics: Metrics, max_policy_lag: int) -> None:
        self._sampler, self._spec, self._metrics = sampler, spec, metrics
        self._max_policy_lag = max_policy_lag
        self._in_use: SampledBatch | None = None
        self._slots = slots

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
        self._in_use = sampled
        with self._metrics.phase("copy"):
            batch = self._slots.batch(sampled)
        return DeviceBatch(batch, mean_version(sampled.arrays, self._spec), sampled.slot)

    def done(self, drawn: DeviceBatch, priorities: Tensor | np.ndarray | None) -> None:
        pass

    def end_epoch(self, version: int) -> None:
        """Releasing the slot requests the next rollout, of policies within `max_policy_lag` of `version`."""
        self._sampler.oldest_version = max(version - self._max_policy_lag, -1)  # -1: any version
        if self._in_use is not None:
            self._slots.wait()
            self._sampler.release(self._in_use)
            self._in_use = None

    def poll(self) -> None:
        self._sampler.poll()

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()
