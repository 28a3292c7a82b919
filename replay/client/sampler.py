"""The learner's client of the replay server: requests batches and sends priorities back."""

from __future__ import annotations

import time
from collections.abc import Sequence

import numpy as np

from replay.client.base import MESSAGES_PER_POLL, SILENCE_SECONDS, BatchSampler, ReplayRefused, SampledBatch, packed
from transport.experience import ExperienceSpec
from transport.lifetime import GOODBYE_SECONDS
from transport.messages.fields import PROTOCOL
from transport.messages.replay import Greet, PriorityUpdate, Refused, Sample, SampleRequest, SamplerHello, SamplerWelcome
from transport.sockets.client import Client
from transport.sockets.keys import Keys


class Sampler(BatchSampler):
    """Requests a batch for every free slot, so that batches are ready before they are needed.

    Actors collect the next rollouts as soon as a batch has been drawn: each slot beyond the first lets them run one more batch
    ahead.
    """

    def __init__(
        self,
        address: str,
        name: str,
        incarnation: int,
        spec: ExperienceSpec,
        batch_size: int,
        slots: int,
        shared: bool = True,
        keys: Keys | None = None,
    ) -> None:
        """`batch_size` counts transitions, or whole chunks if the spec's unit is "sequences" or "rollouts".

        `shared` False: batches arrive as raw parts, as between hosts. Raises SlabError.
        """
        super().__init__(spec, batch_size, slots)
        self.client = Client(address, keys=keys, endpoint="replay")
        slab_name = self._slab.name if shared else ""
        self._hello = SamplerHello(name, incarnation, PROTOCOL, spec.digest, batch_size, slots, slab_name)
        self._requested: dict[int, int] = {}  # slot -> generation
        self._answered: list[tuple[int, int, bytes]] = []  # (slot, number of priorities, packed priorities), not sent yet
        self._server: int | None = None  # incarnation; None without a welcome
        self._last_message = time.monotonic()
        self._greeted = 0.0
        self.greet()

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self._answered.append((batch.slot, len(priorities), packed(batch.arrays["key"], priorities)))
        if 2 * len(self._answered) >= self._slots:
            self._send_answers()

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.client.send(PriorityUpdate(len(keys)), [packed(keys, priorities)])

    def close(self) -> None:
        self._ready.clear()
        for _, count, part in self._answered:
            self.client.send(PriorityUpdate(count), [part])
        self._answered.clear()
        self.client.close(GOODBYE_SECONDS)
        self._slab.close()

    def greet(self) -> None:
        self._greeted = time.monotonic()
        self.client.send(self._hello)

    def _request_free(self) -> None:
        if self._server is None:
            return
        while self._free:
            self._request(self._free.pop())

    def _send_answers(self) -> None:
        """Without a welcome the priorities are sent alone: a restarted server has restored the items under the same keys."""
        for slot, count, part in self._answered:
            if self._server is None:
                self._free.add(slot)
                self.client.send(PriorityUpdate(count), [part])
            else:
                self._request(slot, count, [part])
        self._answered.clear()

    def _request(self, slot: int, priorities: int = 0, parts: Sequence[bytes] = ()) -> None:
        self._generation += 1
        self._requested[slot] = self._generation
        self.client.send(SampleRequest(slot, self._generation, self.oldest_version, priorities), parts)

    def _receive(self, timeout_seconds: float) -> None:
        for _ in range(MESSAGES_PER_POLL):
            arrival = self.client.receive(timeout_seconds)
            if arrival is None:
                break
            timeout_seconds = 0
            self._last_message = time.monotonic()
            message, parts = arrival
            if isinstance(message, Sample):
                self._on_sample(message, parts)
            elif isinstance(message, SamplerWelcome):
                self._on_welcome(message)
            elif isinstance(message, Greet) and self._server is not None:  # otherwise a hello is already in flight
                self._server = None
                self.greet()
            elif isinstance(message, Refused):
                raise ReplayRefused(message.reason)
        silent = time.monotonic() - self._last_message > SILENCE_SECONDS
        if (self._server is None or (silent and self._requested)) and time.monotonic() - self._greeted > SILENCE_SECONDS:
            self._server = None
            self.greet()

    def _on_welcome(self, message: SamplerWelcome) -> None:
        if self._server is not None:
            return  # a second answer to the same greeting
        self._server = message.server_incarnation
        # The server may be a new one, so request all slots again; late answers have an old generation.
        self._free.update(self._requested)
        self._requested.clear()
        self._request_free()

    def _on_sample(self, message: Sample, parts: list[bytes]) -> None:
        if self._requested.get(message.slot) != message.generation:
            self.impossible += message.generation > self._generation or message.slot >= self._slots  # otherwise it is only late
            return
        if parts:
            target = self._slab.raw(message.slot)
            if sum(map(len, parts)) != len(target):
                self.impossible += 1
                return
            offset = 0
            for part in parts:
                target[offset : offset + len(part)] = part
                offset += len(part)
        del self._requested[message.slot]
        self.episodes, self.steps = message.episodes, [message.steps]
        self._ready.append(SampledBatch(message.slot, message.generation, self._slab.slots[message.slot]))
