"""The common part of updates from rollouts: a rollout as arrays of steps, and passes of shuffled minibatches over its items."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from learner.algorithms.arithmetic.sequences import item_rows, stack_index
from learner.algorithms.base import Algorithm
from learner.devices.capabilities import capabilities, send
from learner.engine.rollouts import RewardOptions
from learner.networks.base import PolicyModule
from learner.parallel.base import Group
from learner.updates.base import Chunks, Optimiser, Runtime, Tensors
from learner.updates.trees import count, mapped
from transport.experience import ExperienceSpec

TreeT = TypeVar("TreeT")
GRAINS = 32
PORTION_BYTES = 64 << 20  # of observations in float32 that are evaluated at a time
PORTION_ROWS = 8_192


class Rollout:
    """A rollout batch of B chunks of at most L steps. Items are those steps that were acted on."""

    def __init__(self, batch: Chunks, spec: ExperienceSpec, options: RewardOptions) -> None:
        here = slice(spec.history, -1)
        self.batch = batch
        self.rows: Tensors = {name: column.flatten(0, 1) for name, column in batch.observation.items()}  # [B * rows, *shape]
        self.index = stack_index(batch.episode_step, spec.stack)  # [B, L + 1, stack] into the rows, with the one after the last
        self.item = item_rows(batch, spec)  # [B, L] bool
        reward = batch.reward[:, here]
        self.reward = options.reward_scale * (reward.clamp(-1.0, 1.0) if options.clip_rewards else reward)  # [B, L]
        # Arguments of gae(), vtrace() and lambda_return(), here [B, L].
        terminated = batch.terminated[:, here]
        following = torch.cat([self.item[:, 1:], torch.zeros_like(self.item[:, :1])], 1)  # the next row is an item
        self.discount = torch.where(terminated, 0.0, options.gamma)
        self.cut = terminated | batch.truncated[:, here] | ~following

    @cached_property
    def places(self) -> Tensor:
        """The items' places [N] among the B * L steps. Waits for the device."""
        return self.item.flatten().nonzero().squeeze(1)

    def of_items(self, column: Tensor) -> Tensor:
        """A column [B, L, …] -> its values [N, …] of the items."""
        return column.flatten(0, 1).index_select(0, self.places)

    @property
    def newest(self) -> Tensor:
        """The items' own rows [N], each once: rows of the history belong to other chunks, too."""
        return self.of_items(self.index[:, :-1, -1])


class RolloutUpdate:
    """Takes several passes over the items of each rollout batch. A subclass has `config`, `policy`, an optimiser and step()."""

    config: Any
    policy: PolicyModule
    optimiser: Optimiser
    modules: dict[str, nn.Module]

    def __init__(self, algorithm: Algorithm, spec: ExperienceSpec, runtime: Runtime) -> None:
        self.spec, self.runtime, self.config = spec, runtime, algorithm.config
        self.few_shapes, self.portion = capabilities(runtime.device).few_shapes, portion(spec)

    def step(self, minibatch: Any, rows: Tensors) -> Tensors:
        """One optimiser step; returns the metrics. `rows`: the rollout's, which items refer to."""
        raise NotImplementedError

    def is_enough(self, metrics: Tensors) -> bool:
        """True if the remaining passes are skipped, after a pass whose last step had these metrics."""
        return False

    def minibatches(self, items: int) -> int:
        """How many minibatches that many items of a rollout batch are split into, if there are as many. All processes agree."""
        minibatches: int = self.config.minibatches
        return minibatches

    def passes(self, items: Any, rows: Tensors, asks: bool = False) -> tuple[Tensors, Tensors | None]:
        """The mean metrics of all steps, and those of the last; None instead of these where the run is stopping. The steps taken
        are valid then, too. `asks`: is_enough() decides after each pass whether there is another."""
        config, runtime = self.config, self.runtime
        # Random numbers are drawn only for passes that are wanted.
        draws = [1] * config.n_epochs if asks else [config.n_epochs]
        mean, metrics, parts = Mean(), Tensors(), self.minibatches(count(items))
        for minibatches in shuffled(count(items), draws, parts, runtime.group, runtime.device, self.few_shapes):
            for which in minibatches:
                metrics = self.step(take(items, which), rows)
                mean.add(metrics)
                if runtime.interrupted():
                    return mean.mean(), None
            if asks and self.is_enough(metrics):
                break
        return mean.mean(), metrics


def portion(spec: ExperienceSpec) -> int:
    """How many rows are evaluated at a time without gradients."""
    stacked = 4 * spec.stack * sum(math.prod(field.shape) for field in spec.fields)  # bytes of a row's stack in float32
    return max(1, min(PORTION_ROWS, PORTION_BYTES // stacked))


def shuffled(
    items: int, draws: Sequence[int], minibatches: int, group: Group, device: torch.device, few_shapes: bool = False
) -> Iterator[tuple[Tensor, ...]]:
    """For each epoch the indices of its minibatches: each item once, in parts of nearly one size, equally many in every process.

    `draws`: how many epochs are drawn together, from torch's global CPU generator; one copy brings them to the device. With
    `few_shapes` all parts have one size, which is the same for most numbers of items near this one: a different few items,
    less than one in GRAINS, are left out of each epoch.
    """
    parts = min(minibatches, group.least(items))
    size = items // parts
    grain = 1 << (size // GRAINS).bit_length() - 1 if few_shapes and size >= GRAINS else 0  # a power of two
    for epochs in draws:
        for order in send(torch.stack([torch.randperm(items) for _ in range(epochs)]), device):
            if grain:
                same = size - size % grain
                yield order[: same * parts].split(same)
            else:
                yield order.tensor_split(parts)


def take(tree: TreeT, which: Tensor) -> TreeT:
    """The items at the indices `which` [M] int64, of a NamedTuple or dict of tensors [N, …]."""
    return mapped(lambda column: column.index_select(0, which), tree)


class Mean:
    """The mean of the metrics of several steps."""

    def __init__(self) -> None:
        self._total: Tensors = {}
        self._steps = 0

    def add(self, metrics: Tensors) -> None:
        """Copies the metrics, since the next step may overwrite them."""
        self._total = {name: self._total[name] + value if self._steps else value.clone() for name, value in metrics.items()}
        self._steps += 1

    def mean(self) -> Tensors:
        return {name: value / self._steps for name, value in self._total.items()}
