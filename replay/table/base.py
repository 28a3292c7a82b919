"""What the two ways of drawing have in common: items, each as often as the limiter allows, or whole chunks, each once."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Protocol

import numpy as np

from replay.server.arrivals import Pending, Writer
from transport.messages import SampleRequest
from transport.metrics import Record


class Source(Protocol):
    """What batches are drawn from. It takes chunks from `pending`; whose chunks it is done with it adds to `advanced`."""

    pending: deque[Pending]  # oldest first
    advanced: set[Writer]  # to be told how far they are

    def connect(self, batch: int, lent: int) -> None:
        """A learner has come: a batch of each makes `batch` items now, or chunks of rollouts; all their slots hold `lent`."""

    def disconnect(self, batch: int, lent: int) -> None:
        """One has gone; `batch` and `lent` are what the others want, 0 when there is none."""

    @property
    def receive_bytes(self) -> int:
        """Bytes of chunks, unpacked, that may wait."""

    @property
    def memory_bytes(self) -> int:
        """Bytes that the process takes at most when everything is full."""

    @property
    def policy_version(self) -> int:
        """Under which weights actors should go on; -1 when any will do."""

    @property
    def holds(self) -> bool:
        """Whether what is pending has to wait."""

    def insert(self) -> None:
        """Takes in what is pending, where nobody need ask for it."""

    def draw(self, request: SampleRequest, arrays: dict[str, np.ndarray]) -> int | None:
        """Fills a batch and says how many items it has; None when it has to wait."""

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> int:
        """New priorities [N] for keys [N]; returns how many were taken."""

    def writers_changed(self, present: list[Writer]) -> None:
        """Those who send are now these."""

    def credit_chunks(self, writer: Writer) -> int:
        """Chunks that a writer may have under way."""

    def credit_bytes(self, writer: Writer) -> int:
        """The same as the writer counts it: while less is under way it may send one more."""

    def written(self, name: str, incarnation: int) -> int:
        """The sequence below which everything of one life of an actor is on disk."""

    @property
    def counters(self) -> Record:
        """Where the server's counters begin."""

    def turn(self, counters: Callable[[], Record]) -> None:
        """Does what is due on the disk."""

    def close(self, counters: Callable[[], Record]) -> None:
        """Returns when everything is on disk."""

    def measure(self) -> None:
        """Sets the gauges that change all the time."""

    @property
    def summary(self) -> str:
        """What it holds, for the first line of the log."""
