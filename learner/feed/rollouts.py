"""Rollout batches: each is learned from once, and the next is requested when the new weights have been published."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from learner.feed.base import DeviceBatch
from learner.feed.batches import SlotCopies, device_views, mean_version, to_batch
from learner.updates.base import Batch
from replay.client.base import BatchSampler, SampledBatch
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.metrics import Metrics


class RolloutFeed:
    """One rollout batch per epoch. Its slot is released when the policy that was learned from it has been published."""

    updates_per_epoch = 1

    def __init__(
        self,
        sampler: BatchSampler,
        spec: ExperienceSpec,
        device: torch.device,
        metrics: Metrics,
        max_policy_lag: int,
        streams: Any = None,
    ) -> None:
        """`streams`: torch's module of a device to which slots are copied as one piece of page-locked memory; None elsewhere."""
        self._sampler, self._spec, self._metrics = sampler, spec, metrics
        self._max_policy_lag = max_policy_lag
        self._in_use: SampledBatch | None = None
        queued = streams is not None
        self._copies = _QueuedCopies(sampler, spec, device, streams) if queued else SlotCopies(sampler, spec, device)

    @property
    def episodes(self) -> int:
        return self._sampler.episodes

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            sampled = self._sampler.next(timeout_seconds)
        if sampled is None:
            return None
        self._in_use = sampled
        with self._metrics.phase("copy"):
            batch = self._copies.batch(sampled)
        return DeviceBatch(batch, mean_version(sampled.arrays, self._spec), sampled.slot)

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        pass

    def end_epoch(self, version: int) -> None:
        """Releasing the slot requests the next rollout, of policies within `max_policy_lag` of `version`."""
        self._sampler.oldest_version = version - self._max_policy_lag
        if self._in_use is not None:
            self._copies.wait()
            self._sampler.release(self._in_use)
            self._in_use = None

    def poll(self) -> None:
        self._sampler.poll()

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()


class _QueuedCopies:
    """Device memory for one slot. A slot is copied in the stream that computes, so what it overwrites has been used."""

    def __init__(self, sampler: BatchSampler, spec: ExperienceSpec, device: torch.device, streams: Any) -> None:
        arrays = layout(spec, sampler.batch_size)
        self._spec, self._device, self._streams = spec, device, streams
        self._slots = torch.from_numpy(sampler.memory).reshape(-1, arrays.slot_bytes)
        self._memory = torch.empty(arrays.slot_bytes, dtype=torch.uint8, device=device)
        self._tensors = device_views(arrays, self._memory)
        self._copied: Any = None  # event

    def batch(self, sampled: SampledBatch) -> Batch:
        """The slot's batch on the device. The host does not wait for the copy."""
        self._memory.copy_(self._slots[sampled.slot], non_blocking=True)
        self._copied = self._streams.Event(blocking=True)
        self._copied.record(self._streams.current_stream(self._device))
        return to_batch(self._tensors, self._spec, self._device)

    def wait(self) -> None:
        """Until the last copy has ended, so that replay may overwrite its slot."""
        self._copied.synchronize()
