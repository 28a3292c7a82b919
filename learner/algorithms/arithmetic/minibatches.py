"""Portions of a rollout for evaluation, shuffled minibatches for learning, and the mean of the metrics of several steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from learner.devices.capabilities import send
from learner.parallel.group import Group
from learner.updates.base import Tensors
from learner.updates.trees import mapped
from transport.experience import ExperienceSpec

TreeT = TypeVar("TreeT")
GRAINS = 32
PORTION_BYTES = 64 << 20  # of observations in float32 that are evaluated at a time
PORTION_ROWS = 8_192


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
