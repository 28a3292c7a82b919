"""The two seams of replay: the table that batches are drawn from, and the selector that says which items."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from msgspec import Struct

from replay.table.inbox import Writer
from transport.messages import SampleRequest


class Table(Protocol):
    """What the server draws batches from. It takes chunks out of the inbox that it was made with."""

    @property
    def holds(self) -> bool:
        """Whether chunks in the inbox have to wait."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that the process takes at most when everything is full."""

    @property
    def policy_version(self) -> int:
        """The weights under which actors should go on; -1 when any will do."""

    @property
    def summary(self) -> str:
        """What it holds, for the first line of the log."""

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """Fills a batch, arrays of `layout`, and returns how many steps it has; None when the learner has to wait."""

    def learners_changed(self, batch: int, leased: int) -> None:
        """Now a batch of each learner makes `batch` items together, and all their slots hold `leased`; 0 without learners."""

    def writers_changed(self, present: list[Writer]) -> None:
        """These actors are connected now."""

    def credit_chunks(self, writer: Writer) -> int:
        """Chunks that a writer may have under way."""

    def credit_bytes(self, writer: Writer) -> int:
        """The same as the writer counts it: while less is under way it may send one more."""

    def measure(self) -> None:
        """Sets the gauges that change all the time."""


class SelectorState(NamedTuple):
    """What a selector knows of its leaves; enough to go on in another process."""

    values: np.ndarray  # [leaves] float64, finite and at least 0; 0 where nothing can be drawn
    numbers: dict[str, Any]  # JSON


class Selector(Protocol):
    """Says which items are drawn. `replay.selector` names it: a built-in, or `package.module:Name`.

    It knows leaves, the places of items in the ring, and priorities, not what lies there. Leaves come and go in aligned blocks,
    one block for each chunk.
    """

    Config: ClassVar[type[Struct]]  # its options, the table replay.selector_options

    def __init__(self, leaves: int, random: np.random.Generator, config: Any) -> None: ...

    def insert(self, first: int, drawable: np.ndarray, priorities: np.ndarray) -> None:
        """A block of leaves is new: `drawable` [L] bool, `priorities` [L] float64 at least 0, NaN where none is known."""

    def evict(self, first: int, length: int) -> None:
        """Nothing can be drawn from a block of leaves any more."""

    def sample(self, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Drawable leaves [count] int64, and the probability [count] float64 with which each was drawn. Some leaf is drawable."""

    def update(self, leaves: np.ndarray, priorities: np.ndarray) -> None:
        """New priorities [N], finite and at least 0, of drawable leaves [N]."""

    def state(self) -> SelectorState:
        """A copy of what it knows."""

    def resume(self, numbers: dict[str, Any]) -> None:
        """Before any block is inserted: goes on with the numbers of a state. Raises ValueError for those of another selector."""

    def restore(self, leaves: np.ndarray, values: np.ndarray) -> None:
        """After resume() and the inserts: drawable leaves [N] get the values [N] that they had in that state."""
