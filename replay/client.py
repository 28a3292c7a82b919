"""The two clients of the replay server: the actors' writer and the learner's sampler."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.table.layout import layout
from transport.compression import crc32, pack_chunk
from transport.experience import Chunk, ExperienceSpec
from transport.lifetime import say
from transport.messages import (
    PROTOCOL,
    Ack,
    Credit,
    Goodbye,
    Greet,
    Insert,
    Present,
    PriorityUpdate,
    Refused,
    Sample,
    SampleRequest,
    SamplerHello,
    SamplerWelcome,
    WriterHello,
    WriterWelcome,
)
from transport.slab import Slab
from transport.sockets.client import Client
from transport.sockets.frames import FRAME_BYTES, Part, cut, shared
from transport.sockets.keys import Keys

SILENCE_SECONDS = 2.0  # replay answers, or says that it holds, several times in this long; more means trouble
PRESENT_SECONDS = 1.0  # without anything to send: replay is told that this process is there
ABSENCE_SECONDS = 3.0  # without a word of any kind: a person should know
GOODBYE_SECONDS = 0.5
MESSAGES_PER_POLL = 256  # a server that talks without end must not keep a process from its own work
MOST_CREDIT_BYTES = 1 << 30  # however much more a server gives: it is this process's memory


class ReplayRefused(RuntimeError):
    """Replay will not serve this process: the message is replay's reason."""


@dataclass(frozen=True)
class _Unacknowledged:
    sequence: int
    message: Insert
    parts: Sequence[Part]
    steps: int


class ExperienceWriter:
    """Sends chunks and keeps each until replay has acknowledged it.

    Nothing here blocks: `insert` when `has_credit`, and call `poll` often. Chunks are sent again only where replay, when greeted,
    says that it has not got them, and replay drops what it already has.
    """

    def __init__(
        self, address: str, name: str, incarnation: int, spec: ExperienceSpec, streams: int, keys: Keys | None = None
    ) -> None:
        """Connects in the background; credit arrives with replay's welcome."""
        self.client = Client(address, keys=keys, endpoint="replay")
        self._name, self.incarnation, self._spec, self._streams = name, incarnation, spec, streams
        self.unacknowledged: deque[_Unacknowledged] = deque()
        self._next_sequence = 0
        self._next_to_send = 0
        self._sent_below = 0  # every sequence below has been sent over some connection
        self.credit_bytes = 0
        self._server: tuple[int, int] | None = None  # (incarnation, connection) of the last welcome
        self.welcomed = False  # while a greeting is unanswered nothing is sent, or it might arrive before what was lost
        self._heard = self._last_word = time.monotonic()
        self.absent = False
        self._spoke = 0.0  # when something was last sent
        self._greeted = 0.0
        self.absences = 0  # times that there was no word from replay for long
        self.raw_bytes = 0
        self.sent_bytes = 0
        self.acknowledged_steps = 0
        self.refuted = 0  # messages that say what cannot be
        self.policy_version = -1  # that replay would have actors act under; -1 when any will do
        self.greet()

    @property
    def has_credit(self) -> bool:
        """Whether a chunk may be inserted now. With nothing under way one chunk always may, however small the credit."""
        if self._server is None:
            return False
        # Credit is counted as replay holds a waiting chunk, unpacked: counted as sent, ten times the steps would be under way. A
        # short chunk counts as a whole one, so that credit is a number of chunks.
        return not self.unacknowledged or self.outstanding * self._spec.chunk_bytes < self.credit_bytes

    @property
    def outstanding(self) -> int:
        """Chunks not acknowledged yet."""
        return len(self.unacknowledged)

    def insert(self, chunk: Chunk) -> None:
        """Packs and sends a chunk."""
        parts = pack_chunk(self._spec, chunk)
        travelling: Sequence[Part] = parts
        sizes: tuple[int, ...] = ()
        if max(map(len, parts)) > FRAME_BYTES:  # and kept once, here and in libzmq's queue
            travelling, sizes = shared(cut(b"".join(parts))), tuple(map(len, parts))
        message = Insert(self._next_sequence, chunk.stream, chunk.length, crc32(parts), sizes)
        if not self.unacknowledged:
            self._heard = time.monotonic()  # silence counts from here
        history = self._spec.history
        steps = int(np.count_nonzero(chunk.columns["valid"][history : history + chunk.length]))
        self.unacknowledged.append(_Unacknowledged(self._next_sequence, message, travelling, steps))
        self._next_sequence += 1
        self.raw_bytes += self._spec.stored_bytes(chunk.length)
        self.sent_bytes += sum(map(len, parts))
        self._send()

    def poll(self, timeout_seconds: float = 0) -> None:
        """Takes in acknowledgements; greets again after silence. Raises ReplayRefused."""
        for _ in range(MESSAGES_PER_POLL):
            arrival = self.client.receive(timeout_seconds)
            if arrival is None:
                break
            timeout_seconds = 0
            message = arrival[0]
            self._hears()
            if isinstance(message, Credit):  # says nothing of what is under way, so it does not break a silence
                self.credit_bytes = min(message.credit_bytes, MOST_CREDIT_BYTES)
                continue
            self._heard = time.monotonic()
            if isinstance(message, Ack | WriterWelcome) and message.next_sequence > self._sent_below:
                self.refuted += 1  # nobody can have received what has never been sent
            elif isinstance(message, Ack):
                self._acknowledge(message.next_sequence)
                self.policy_version = message.policy_version
            elif isinstance(message, WriterWelcome):
                self._welcome(message)
            elif isinstance(message, Greet):
                if self.welcomed:  # else it has greeted already
                    self.greet()
            elif isinstance(message, Refused):
                raise ReplayRefused(message.reason)
        self._send()
        now = time.monotonic()
        if self.welcomed and now - self._spoke > PRESENT_SECONDS and self.client.send(Present()):
            self._spoke = now
        silent = now - self._heard > SILENCE_SECONDS
        if (not self.welcomed or (silent and self.unacknowledged)) and now - self._greeted > SILENCE_SECONDS:
            self.greet()
        if not self.absent and now - self._last_word > ABSENCE_SECONDS:
            self.absent = True
            self.absences += 1
            say(f"no word from replay for {ABSENCE_SECONDS:g} s: {self.outstanding} chunks are kept until it answers")

    def _hears(self) -> None:
        """Any message will do: replay is there."""
        now = time.monotonic()
        if self.absent:
            self.absent = False
            say(f"replay answers again, after {now - self._last_word:.0f} s")
        self._last_word = now

    def close(self) -> None:
        """Closes; call after the last acknowledgement, or accept that what is outstanding is lost."""
        self.client.send(Goodbye())
        self.client.close(GOODBYE_SECONDS)

    def greet(self) -> None:
        self._greeted = time.monotonic()
        self.welcomed = False
        first = self.unacknowledged[0].sequence if self.unacknowledged else self._next_sequence
        self.client.send(WriterHello(self._name, self.incarnation, PROTOCOL, self._spec.digest, self._streams, first))

    def _welcome(self, message: WriterWelcome) -> None:
        awaited, self.welcomed = not self.welcomed, True
        self.credit_bytes = min(message.credit_bytes, MOST_CREDIT_BYTES)
        server = (message.server_incarnation, message.connection)
        # All that was sent over the same connection went ahead of the greeting: what replay does not have has been lost. But what
        # answers a greeting sent twice knows nothing of what has been sent since.
        if awaited or server != self._server:
            self._server = server
            self._next_to_send = message.next_sequence

    def _send(self) -> None:
        """Sends, in order and within the credit, what has not been sent over this connection."""
        if not self.welcomed or self._next_to_send >= self._next_sequence:
            return
        first = self._next_sequence - len(self.unacknowledged)  # the oldest that is kept
        for sequence in range(max(self._next_to_send, first), self._next_sequence):
            entry = self.unacknowledged[sequence - first]
            if sequence > first and (sequence - first) * self._spec.chunk_bytes >= self.credit_bytes:
                return  # it has become smaller since
            if not self.client.send(entry.message, entry.parts):
                return
            self._next_to_send = sequence + 1
            self._spoke = time.monotonic()
            self._sent_below = max(self._sent_below, self._next_to_send)

    def _acknowledge(self, next_sequence: int) -> None:
        while self.unacknowledged and self.unacknowledged[0].sequence < next_sequence:
            entry = self.unacknowledged.popleft()
            self.acknowledged_steps += entry.steps


@dataclass(frozen=True)
class SampledBatch:
    """A batch in a slot, until it is released. `arrays` are those of `layout`."""

    slot: int
    generation: int
    arrays: dict[str, np.ndarray]


class Sampler:
    """Keeps every free slot requested, so that batches are ready before they are needed.

    Rollouts whose newest item was acted under an older policy_version than `oldest_version` are dropped; set it before a slot is
    released. Actors collect the next batch of rollouts as soon as one has been drawn: each slot beyond the first puts them one
    batch further ahead.
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
        """`batch_size` counts transitions, or whole chunks where these are the spec's unit.

        `shared` False makes batches travel as raw parts, as they do between hosts. Raises SlabError.
        """
        self.oldest_version = -1
        self.batch_size = batch_size
        self.client = Client(address, keys=keys, endpoint="replay")
        self._slab = Slab.create(layout(spec, batch_size), slots)
        slab_name = self._slab.name if shared else ""
        self._hello = SamplerHello(name, incarnation, PROTOCOL, spec.digest, batch_size, slots, slab_name)
        self._generation = 0
        self._requested: dict[int, int] = {}  # slot -> generation
        self._free = set(range(slots))
        self._ready: deque[SampledBatch] = deque()
        self._slots = slots
        self._answered: list[tuple[int, int, bytes]] = []  # slot, number of priorities, keys and priorities: to be sent
        self._server: int | None = None
        self.refuted = 0  # messages that say what cannot be
        self._heard = time.monotonic()
        self._greeted = 0.0
        self.greet()

    @property
    def memory(self) -> np.ndarray:
        """The bytes of all slots, one after the other: a SampledBatch's `slot` says which of them."""
        return self._slab.memory

    def next(self, timeout_seconds: float) -> SampledBatch | None:
        """The next batch, or None when none came in time. Raises ReplayRefused."""
        deadline = time.monotonic() + timeout_seconds
        self._receive(0)
        if not self._ready:
            self._send_answers()
        while not self._ready and (left := deadline - time.monotonic()) > 0:
            self._receive(left)  # other messages than batches arrive too
        return self._ready.popleft() if self._ready else None

    def release(self, batch: SampledBatch) -> None:
        """The batch has been copied to where it is used: its slot goes back to replay. Do not touch its arrays afterwards."""
        self._free.add(batch.slot)
        self._request_free()

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        """Releases the batch and sends its items' priorities [N] back, in one message, together with those of other batches.

        To wake another process takes longer than to write to it: half of the slots go back at once, or all when none is left.
        """
        self._answered.append((batch.slot, len(priorities), _packed(batch.arrays["key"], priorities)))
        if 2 * len(self._answered) >= self._slots:
            self._send_answers()

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        """Sends priorities [N] of keys [N] back."""
        self.client.send(PriorityUpdate(len(keys)), [_packed(keys, priorities)])

    def close(self) -> None:
        """Closes the socket and gives the memory back."""
        self._ready.clear()
        self.client.close()
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
        """To a server that is there, or there again: items that it still has are there under their keys."""
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
            self._heard = time.monotonic()
            message, parts = arrival
            if isinstance(message, Sample):
                self._on_sample(message, parts)
            elif isinstance(message, SamplerWelcome):
                self._on_welcome(message)
            elif isinstance(message, Greet) and self._server is not None:  # else it has greeted already
                self._server = None
                self.greet()
            elif isinstance(message, Refused):
                raise ReplayRefused(message.reason)
        silent = time.monotonic() - self._heard > SILENCE_SECONDS
        if (self._server is None or (silent and self._requested)) and time.monotonic() - self._greeted > SILENCE_SECONDS:
            self._server = None
            self.greet()

    def _on_welcome(self, message: SamplerWelcome) -> None:
        if self._server is not None:
            return  # an answer to a greeting sent twice
        self._server = message.server_incarnation
        self._free.update(self._requested)  # the server that was asked before may be gone; late answers carry an old generation
        self._requested.clear()
        self._request_free()

    def _on_sample(self, message: Sample, parts: list[bytes]) -> None:
        if self._requested.get(message.slot) != message.generation:
            self.refuted += message.generation > self._generation or message.slot >= self._slots  # else it is only late
            return
        if parts:
            target = self._slab.raw(message.slot)
            if sum(map(len, parts)) != len(target):
                self.refuted += 1
                return
            offset = 0
            for part in parts:
                target[offset : offset + len(part)] = part
                offset += len(part)
        del self._requested[message.slot]
        self._ready.append(SampledBatch(message.slot, message.generation, self._slab.slots[message.slot]))


def _packed(keys: np.ndarray, priorities: np.ndarray) -> bytes:
    return np.ascontiguousarray(keys, "<i8").tobytes() + np.ascontiguousarray(priorities, "<f4").tobytes()
