"""Chooses the feed for the spec's unit, the library that computes, and the device."""

from __future__ import annotations

from collections.abc import Sequence

from learner.config import LearnerSettings
from learner.feed.base import Feed
from learner.feed.plain import PlainFeed
from learner.feed.rollouts import RolloutFeed
from learner.feed.views import SlotViews
from learner.updates.base import Backend
from replay.client.base import BatchSampler
from replay.client.sampler import Sampler
from replay.client.sharded import ShardedSampler
from transport.experience import ExperienceSpec
from transport.lifetime import Lifetime
from transport.metrics import Metrics


def open_feed(
    addresses: Sequence[str], settings: LearnerSettings, spec: ExperienceSpec, runtime: Backend, life: Lifetime
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


def make_feed(sampler: BatchSampler, spec: ExperienceSpec, runtime: Backend, metrics: Metrics) -> Feed:
    if runtime.library != "numpy":
        from learner.feed.on_device import device_feed  # torch

        return device_feed(sampler, spec, runtime, metrics)
    if spec.unit == "rollouts":
        return RolloutFeed(sampler, spec, SlotViews(spec), metrics, runtime.max_policy_lag)
    return PlainFeed(sampler, spec, SlotViews(spec), metrics, runtime.config.updates_per_epoch)
