"""Replay's two protocols: the table from which batches are drawn, and the selector that chooses the items."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from replay.table.inbox import Writer
from transport.messages.replay import SampleRequest


class Table(Protocol):
    """Takes chunks from the inbox that it was made with, and fills batches."""

    @property
    def blocked(self) -> bool:
        """True while chunks in the inbox must wait."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that the process uses when everything is full."""

    @property
    def policy_version(self) -> int:
        """The weights that actors should use from now on; -1: any."""

    @property
    def summary(self) -> str:
        """Its contents and limits, for the first line of the log."""

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """Fills a batch (the arrays of `layout`) and returns its number of steps; None if the learner must wait."""

    def learners_changed(self, batch: int, leased: int) -> None:
        """One batch of each connected learner is `batch` items in all, and all their slots are `leased`; 0 without learners."""

    def writers_changed(self, present: list[Writer]) -> None:
        """`present`: the actors that are connected now."""

    def credit_chunks(self, writer: Writer) -> int:
        """The number of chunks that a writer may have outstanding."""

    def credit(self, writer: Writer) -> int:
        """The credit in bytes: a writer may send one more chunk while its outstanding bytes are below it."""

    def measure(self) -> None:
        """Sets gauges before each metrics record."""


class SelectorState(NamedTuple):
    """The saved state of a selector."""

    values: np.ndarray  # [leaves] float64, finite and at least 0; 0 for leaves that cannot be drawn
    numbers: dict[str, Any]  # JSON


class Selector(Protocol):
    """Chooses the items of a batch. `replay.selector` names it: a built-in, or `package.module:Name`.

    It works on leaves, which are the places of items in the ring, and on priorities; it does not see the items. Leaves are
    inserted and evicted in blocks, one block per chunk: those of full chunks are aligned, shorter ones begin anywhere.
    """

    Config: ClassVar[type[Struct]]  # its options: the table replay.selector_options

    def __init__(self, leaves: int, random: np.random.Generator, config: Any) -> None: ...

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """Adds a block of leaves: `drawable` [L] bool, `priorities` [L] float64, at least 0, NaN if unknown."""

    def evict(self, first: int, length: int) -> None:
        """Removes a block of leaves."""

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Draws leaves [count] int64, and returns the probability [count] float64 of each. At least one leaf is drawable."""

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """Sets priorities [N], finite and at least 0, of drawable leaves [N]."""

    def state(self) -> SelectorState:
        """A copy of its state."""

    def resume(self, numbers: dict[str, Any]) -> None:
        """Continues from the numbers of a state; called before any insert. Raises ValueError for those of another selector."""

    def restore(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """Sets the values [N] of drawable leaves [N] from a state; called after resume() and the inserts."""


class ShardSelector(Selector, Protocol):
    """A selector that several shards can use: its items are drawn in proportion to values, and it knows their sum."""

    @property
    def total(self) -> float:
        """The sum of the values of all drawable items."""
