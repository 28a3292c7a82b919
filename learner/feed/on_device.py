"""The feed for torch's devices: with copies that overlap with computation where a device has streams."""

from __future__ import annotations

from typing import Any

from learner.devices.capabilities import backend, capabilities, page_lock
from learner.feed.base import Feed
from learner.feed.batches import QueuedCopies, SlotCopies
from learner.feed.plain import PlainFeed
from learner.feed.rollouts import RolloutFeed
from learner.feed.streamed import StreamedFeed
from replay.client.base import BatchSampler
from transport.experience import ExperienceSpec
from transport.metrics import Metrics


def device_feed(sampler: BatchSampler, spec: ExperienceSpec, runtime: Any, metrics: Metrics) -> Feed:
    """`runtime`: a LearnerRuntime."""
    device, updates = runtime.device, runtime.config.updates_per_epoch
    streams = backend(device) if capabilities(device).streams else None
    if streams is not None and not page_lock(sampler.memory, device):
        runtime.group.warn("warning: the shared memory cannot be page-locked, so updates wait for copies (see `ulimit -l`)")
    if spec.unit == "rollouts":
        queued = streams is not None
        slots = QueuedCopies(sampler, spec, device, streams) if queued else SlotCopies(sampler, spec, device)
        return RolloutFeed(sampler, spec, slots, metrics, runtime.max_policy_lag)
    if streams is None:
        return PlainFeed(sampler, spec, SlotCopies(sampler, spec, device), metrics, updates)
    return StreamedFeed(sampler, spec, device, metrics, updates, streams)
