"""Chooses the feed for the spec's unit and the device."""

from __future__ import annotations

from collections.abc import Sequence

from learner.config import LearnerSettings
from learner.devices.capabilities import backend, capabilities, page_lock
from learner.feed.base import Feed
from learner.feed.plain import PlainFeed
from learner.feed.rollouts import RolloutFeed
from learner.feed.streamed import StreamedFeed
from learner.updates.base import Runtime
from replay.client.base import BatchSampler
from replay.client.sampler import Sampler
from replay.client.sharded import ShardedSampler
from transport.experience import ExperienceSpec
from transport.lifetime import Lifetime
from transport.metrics import Metrics


def open_feed(
    addresses: Sequence[str], settings: LearnerSettings, spec: ExperienceSpec, runtime: Runtime, life: Lifetime
) -> Feed:
    """Connects to replay, or to all of its shards, and requests batches. Raises OSError."""
    config = settings.learner
    shape = spec, config.batch_items(spec), config.slots(spec)
    sampler: BatchSampler
    if len(addresses) == 1:
        sampler = Sampler(addresses[0], life.name, life.incarnation, *shape, keys=life.keys)
    else:
        sampler = ShardedSampler(addresses, life.name, life.incarnation, *shape, settings.replay.min_size, keys=life.keys)
    return make_feed(sampler, spec, runtime, life.metrics)


def make_feed(sampler: BatchSampler, spec: ExperienceSpec, runtime: Runtime, metrics: Metrics) -> Feed:
    device, updates = runtime.device, runtime.config.updates_per_epoch
    streams = backend(device) if capabilities(device).streams else None
    if streams is not None and not page_lock(sampler.memory, device):
        runtime.group.warn("warning: the shared memory cannot be page-locked, so updates wait for copies (see `ulimit -l`)")
    if spec.unit == "rollouts":
        return RolloutFeed(sampler, spec, device, metrics, runtime.max_policy_lag, streams)
    if streams is None:
        return PlainFeed(sampler, spec, device, metrics, updates)
    return StreamedFeed(sampler, spec, device, metrics, updates, streams)
