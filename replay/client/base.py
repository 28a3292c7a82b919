"""Shared by the clients of replay: signs of trouble, and the base class of the learner's clients."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass

import numpy as np

from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.slab import Slab

SILENCE_SECONDS = 2.0  # replay answers several times in this time; a longer silence is a fault, and the client greets again
MESSAGES_PER_POLL = 256  # a server that sends without end must not keep a process from its own work


class ReplayRefused(RuntimeError):
    """Replay refuses to serve this process; the message is replay's reason."""


@dataclass(frozen=True)
class SampledBatch:
    """A batch in a slot, valid until it is released. `arrays` are those of `layout`."""

    slot: int
    generation: int
    arrays: dict[str, np.ndarray]


class BatchSampler(ABC):
    """A learner's client of replay that keeps slots of shared memory filled: Sampler with one replay process, ShardedSampler with
    several.

    Replay drops rollouts whose newest item has a policy_version below `oldest_version`; set it before a slot is released.
    """

    def __init__(self, spec: ExperienceSpec, batch_size: int, slots: int) -> None:
        """Raises SlabError."""
        self.oldest_version = -1
        self.batch_size = batch_size
        self.episodes = 0  # that replay had collected when it sent its last batch; a restarted process counts anew
        self.steps: list[int] = []  # environment steps, likewise, of each replay process
        self.impossible = 0  # messages that contradict what this sampler has requested
        self._slots = slots
        self._slab = Slab.create(layout(spec, batch_size), slots)
        self._generation = 0
        self._free = set(range(slots))
        self._ready: deque[SampledBatch] = deque()

    @property
    def memory(self) -> np.ndarray:
        """The bytes of all slots, one after the other."""
        return self._slab.memory

    def next(self, timeout_seconds: float) -> SampledBatch | None:
        """The next batch; None if none arrived in time. Raises ReplayRefused."""
        deadline = time.monotonic() + timeout_seconds
        self._receive(0)
        if not self._ready:
            self._send_answers()
        while not self._ready and (left := deadline - time.monotonic()) > 0:
            self._receive(left)  # may return early, after a message that is not a batch
        return self._ready.popleft() if self._ready else None

    def poll(self) -> None:
        """Reads what has arrived. Raises ReplayRefused."""
        self._receive(0)

    def release(self, batch: SampledBatch) -> None:
        """Gives the slot back to replay after the batch has been copied. Do not use its arrays afterwards."""
        self._free.add(batch.slot)
        self._request_free()

    @abstractmethod
    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        """Releases the batch and sends new priorities [N] of its items, together with those of other batches.

        Waking the server up costs more than sending to it, so requests go out when half of the slots are answered, or when no
        batch is left.
        """

    @abstractmethod
    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sends new priorities [N] of keys [N]."""

    @abstractmethod
    def close(self) -> None:
        """Sends the priorities that have not been sent, disconnects and releases the memory."""

    @abstractmethod
    def _receive(self, timeout_seconds: float) -> None:
        """Reads what has arrived; waits for the first message, for this time at most. Raises ReplayRefused."""

    @abstractmethod
    def _request_free(self) -> None:
        """Requests a batch for each free slot."""

    @abstractmethod
    def _send_answers(self) -> None:
        """Sends the priorities of answered batches and requests their slots again."""


def packed(keys: np.ndarray, priorities: np.ndarray) -> bytes:
    """The raw part of a PriorityUpdate: priorities [N] of keys [N]."""
    return np.ascontiguousarray(keys, "<i8").tobytes() + np.ascontiguousarray(priorities, "<f4").tobytes()
