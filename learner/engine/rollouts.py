"""Rollouts in arrays, and passes of shuffled minibatches: what learner/algorithms/arithmetic/rollouts.py does in torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np

from learner.engine.normaliser import observe
from learner.program.inputs import Inputs
from transport.experience import Columns, ExperienceSpec

if TYPE_CHECKING:
    from learner.updates.base import Chunks

ItemsT = TypeVar("ItemsT", bound=tuple[np.ndarray, ...])
Metrics = dict[str, float]
PORTION_ROWS = 1_024  # that a network evaluates at a time: their activations stay in the cache


class RewardOptions(Protocol):
    """The options by which rewards become returns."""

    @property
    def gamma(self) -> float: ...

    @property
    def clip_rewards(self) -> bool: ...

    @property
    def reward_scale(self) -> float: ...


class PassOptions(Protocol):
    """The options by which a rollout is learned from."""

    @property
    def n_epochs(self) -> int: ...

    @property
    def minibatches(self) -> int: ...


class RolloutRuntime(Protocol):
    """The part of the learner process that is used here."""

    random: np.random.Generator

    def interrupted(self) -> bool: ...


class Rollout:
    """A rollout batch of B chunks of at most L steps. Items are those steps that were acted on."""

    def __init__(self, batch: Chunks[np.ndarray], spec: ExperienceSpec, options: RewardOptions) -> None:
        here = slice(spec.history, -1)
        self.batch = batch
        self.rows: Columns = {name: column.reshape(-1, *column.shape[2:]) for name, column in batch.observation.items()}
        self.index = stack_index(batch.episode_step, spec.stack)  # [B, L + 1, stack] into the rows, with the one after the last
        self.item = item_rows(batch, spec)  # [B, L] bool
        reward = batch.reward[:, here]
        reward = reward.clip(-1.0, 1.0) if options.clip_rewards else reward
        self.reward = np.float32(options.reward_scale) * reward  # [B, L]
        # Arguments of gae(), vtrace() and lambda_return(), here [B, L].
        terminated = batch.terminated[:, here]
        self.discount = np.where(terminated, np.float32(0), np.float32(options.gamma))
        self.cut = terminated | batch.truncated[:, here]
        self.cut[:, -1] = True
        self.cut[:, :-1] |= ~self.item[:, 1:]  # the next row is no item

    @cached_property
    def places(self) -> np.ndarray:
        """The items' places [N] among the B * L steps."""
        return np.flatnonzero(self.item)

    def read(self, inputs: Inputs) -> np.ndarray:
        """What networks read at all steps and the one after the last, chunk after chunk: [B * (L + 1), F]. Each row is decoded
        once."""
        rows = inputs.rows({name: column[:, None] for name, column in self.rows.items()})[:, 0]
        return inputs.flat(rows.take(self.index.reshape(-1, self.index.shape[2]), 0))

    def newest_of_all(self, name: str) -> np.ndarray:
        """A field of the observations at the steps of read(): [B * (L + 1), 1, *shape] as stored."""
        return self.rows[name].take(self.index[:, :, -1:].reshape(-1, 1), 0)

    def seen(self) -> Columns:
        """The items' own rows {name: [N, 1, *shape]} as stored."""
        newest = self.newest
        return {name: column.take(newest, 0)[:, None] for name, column in self.rows.items()}

    def observe(self, inputs: Inputs) -> None:
        """Updates the running statistics of the inputs, if there are any, by seen()."""
        if inputs.statistics:
            count, mean, variance = inputs.statistics
            observe(count, mean, variance, inputs.raw(self.seen())[:, 0])

    def of_items(self, column: np.ndarray) -> np.ndarray:
        """A column [B, L, …] -> its values [N, …] of the items."""
        return column.reshape(-1, *column.shape[2:]).take(self.places, 0)

    @property
    def newest(self) -> np.ndarray:
        """The items' own rows [N], each once: rows of the history belong to other chunks, too."""
        return self.of_items(self.index[:, :-1, -1])

    @property
    def among_read(self) -> np.ndarray:
        """The items' places [N] among the steps of read()."""
        length = self.item.shape[1]
        return self.places + self.places // length


def item_rows(batch: Chunks[np.ndarray], spec: ExperienceSpec) -> np.ndarray:
    """[B, L] bool: whether row history + i holds item i. Short chunks have fewer than L, and a row without action holds none."""
    valid = batch.valid[:, spec.history : -spec.n_step]
    items: np.ndarray = valid & (np.arange(valid.shape[1]) < batch.length[:, None])
    return items


def stack_index(episode_step: np.ndarray, stack: int) -> np.ndarray:
    """Indices of the rows of each row's frame stack, oldest first: [B, rows] int64 -> [B, rows - (stack - 1), stack] int64 into
    B * rows rows.

    A stack never reaches past its episode's first row, which is repeated instead, as in the actor's stack.
    """
    chunks, rows = episode_step.shape
    row = np.arange(chunks * rows).reshape(chunks, rows)[:, stack - 1 :]
    back = np.arange(stack - 1, -1, -1)  # [stack] how many rows back each place is
    age = episode_step[:, stack - 1 :].clip(0)  # rows past a chunk's last may hold anything
    index: np.ndarray = row[..., None] - np.minimum(back, age[..., None])
    return index


class RolloutUpdate:
    """Takes several passes over the items of each rollout batch. A subclass has step()."""

    def __init__(self, spec: ExperienceSpec, runtime: RolloutRuntime, config: Any) -> None:
        self.spec, self.runtime, self.config = spec, runtime, config

    def step(self, minibatch: Any) -> Metrics:
        """One optimiser step; returns the metrics."""
        raise NotImplementedError

    def is_enough(self, metrics: Metrics) -> bool:
        """True if the remaining passes are skipped, after a pass whose last step had these metrics."""
        return False

    def passes(self, items: Any) -> tuple[Metrics, Metrics | None]:
        """The mean metrics of all steps, and those of the last; None instead of these where the run is stopping. The steps taken
        are valid then, too. is_enough() decides after each pass whether there is another."""
        options: PassOptions = self.config
        mean, metrics = Mean(), Metrics()
        for _ in range(options.n_epochs):
            for minibatch in shuffled(items, options.minibatches, self.runtime.random):
                metrics = self.step(minibatch)
                mean.add(metrics)
                if self.runtime.interrupted():
                    return mean.mean(), None
            if self.is_enough(metrics):
                break
        return mean.mean(), metrics


def portions(rows: int) -> list[slice]:
    """Divides that many rows into parts of at most PORTION_ROWS."""
    return [slice(start, start + PORTION_ROWS) for start in range(0, rows, PORTION_ROWS)]


def shuffled(items: ItemsT, minibatches: int, random: np.random.Generator) -> Iterator[ItemsT]:
    """The items, each once, in minibatches of nearly one size. The whole is rearranged at once, so that minibatches are views.

    `items`: a NamedTuple of arrays [N, …], as are the minibatches."""
    number = len(items[0])
    parts = min(minibatches, number)
    arranged = take(items, random.permutation(number))
    size, longer = divmod(number, parts)  # the first minibatches have one item more
    start = 0
    for part in range(parts):
        stop = start + size + (part < longer)
        yield _mapped(itemgetter(slice(start, stop)), arranged)
        start = stop


def take(items: ItemsT, which: np.ndarray) -> ItemsT:
    """The items at the indices `which` [M] int64, of a NamedTuple of arrays [N, …]."""
    return _mapped(lambda column: column.take(which, 0), items)


def _mapped(function: Callable[[np.ndarray], np.ndarray], items: ItemsT) -> ItemsT:
    make: Any = type(items)
    mapped: ItemsT = make(*map(function, items))
    return mapped


class Mean:
    """The mean of the metrics of several steps."""

    def __init__(self) -> None:
        self._total: Metrics = {}
        self._steps = 0

    def add(self, metrics: Metrics) -> None:
        self._total = {name: self._total.get(name, 0.0) + value for name, value in metrics.items()}
        self._steps += 1

    def mean(self) -> Metrics:
        return {name: value / self._steps for name, value in self._total.items()}
