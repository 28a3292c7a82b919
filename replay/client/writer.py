"""The actors' client of the replay server: sends chunks until they are acknowledged."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from replay.client.base import MESSAGES_PER_POLL, SILENCE_SECONDS, ReplayRefused
from transport.compression import crc32, pack_chunk
from transport.experience import Chunk, ExperienceSpec
from transport.lifetime import GOODBYE_SECONDS
from transport.messages.fields import PROTOCOL
from transport.messages.replay import Ack, Credit, Goodbye, Greet, Insert, Present, Refused, WriterHello, WriterWelcome
from transport.sockets.channel import FRAME_BYTES, Part, cut, shared
from transport.sockets.client import Client
from transport.sockets.keys import Keys
from transport.text import say

PRESENT_SECONDS = 1.0  # after this time without a message of its own the writer sends Present
ABSENCE_SECONDS = 3.0  # after this time without any message from replay the writer prints a line
MOST_CREDIT_BYTES = 1 << 34  # the credit uses this process's memory, so a larger one is cut to this


@dataclass(frozen=True)
class _Unacknowledged:
    sequence: int
    message: Insert
    parts: Sequence[Part]
    steps: int


class ExperienceWriter:
    """Sends chunks and keeps each one until replay has acknowledged it.

    No method blocks: call `insert` when `has_credit`, and `poll` often. The writer sends a chunk again only if replay's answer
    to a greeting shows that replay does not have it; replay drops duplicates.
    """

    def __init__(
        self, address: str, name: str, incarnation: int, spec: ExperienceSpec, streams: int, keys: Keys | None = None
    ) -> None:
        """Connects in the background; there is no credit before replay's welcome."""
        self.client = Client(address, keys=keys, endpoint="replay")
        self._name, self.incarnation, self._spec, self._streams = name, incarnation, spec, streams
        self.unacknowledged: deque[_Unacknowledged] = deque()
        self._next_sequence = 0
        self._next_to_send = 0
        self._sent_below = 0  # all sequences below have been sent over some connection
        self.credit = 0  # bytes
        self._server: tuple[int, int] | None = None  # (incarnation, connection) of the last welcome
        self.welcomed = False  # nothing is sent before the answer to a greeting: it could overtake chunks that were lost
        self._last_answer = self._last_message = time.monotonic()
        self.absent = False  # no message from replay for a long time
        self._last_sent = 0.0
        self._greeted = 0.0
        self.absences = 0
        self.raw_bytes = 0
        self.sent_bytes = 0
        self.acknowledged_steps = 0
        self.impossible = 0  # messages that contradict what this writer has sent
        self.policy_version = -1  # the weights that replay wants actors to use; -1: any
        self.greet()

    @property
    def has_credit(self) -> bool:
        """True if a chunk may be inserted now. If none is outstanding, one is always allowed, however small the credit."""
        if self._server is None:
            return False
        # The credit counts uncompressed bytes, because replay needs that memory; compressed, ten times as many steps would be
        # outstanding. A short chunk counts as a full one, so that the credit is a number of chunks.
        return not self.unacknowledged or self.outstanding * self._spec.chunk_bytes < self.credit

    @property
    def outstanding(self) -> int:
        """The number of chunks that are not acknowledged yet."""
        return len(self.unacknowledged)

    def insert(self, chunk: Chunk) -> None:
        parts = pack_chunk(self._spec, chunk)
        pieces: Sequence[Part] = parts
        sizes: tuple[int, ...] = ()
        if max(map(len, parts)) > FRAME_BYTES:  # `shared`: this writer and libzmq's queue use the same memory
            pieces, sizes = shared(cut(b"".join(parts))), tuple(map(len, parts))
        message = Insert(self._next_sequence, chunk.stream, chunk.length, crc32(parts), sizes, chunk.starts)
        if not self.unacknowledged:
            self._last_answer = time.monotonic()  # from now on an answer is due
        history = self._spec.history
        steps = int(np.count_nonzero(chunk.columns["valid"][history : history + chunk.length]))
        self.unacknowledged.append(_Unacknowledged(self._next_sequence, message, pieces, steps))
        self._next_sequence += 1
        self.raw_bytes += self._spec.stored_bytes(chunk.length)
        self.sent_bytes += sum(map(len, parts))
        self._send()

    def poll(self, timeout_seconds: float = 0) -> None:
        """Reads replay's messages, sends what the credit allows, and greets again after silence. Raises ReplayRefused."""
        for _ in range(MESSAGES_PER_POLL):
            arrival = self.client.receive(timeout_seconds)
            if arrival is None:
                break
            timeout_seconds = 0
            message = arrival[0]
            self._end_absence()
            if isinstance(message, Credit):  # says nothing about outstanding chunks, so it does not end a silence
                self.credit = min(message.credit_bytes, MOST_CREDIT_BYTES)
                continue
            self._last_answer = time.monotonic()
            if isinstance(message, Ack | WriterWelcome) and message.next_sequence > self._sent_below:
                self.impossible += 1  # it acknowledges chunks that were never sent
            elif isinstance(message, Ack):
                self._acknowledge(message.next_sequence)
                self.policy_version = message.policy_version
            elif isinstance(message, WriterWelcome):
                self._welcome(message)
            elif isinstance(message, Greet):
                if self.welcomed:  # otherwise a hello is already in flight
                    self.greet()
            elif isinstance(message, Refused):
                raise ReplayRefused(message.reason)
        self._send()
        now = time.monotonic()
        if self.welcomed and now - self._last_sent > PRESENT_SECONDS and self.client.send(Present()):
            self._last_sent = now
        silent = now - self._last_answer > SILENCE_SECONDS
        if (not self.welcomed or (silent and self.unacknowledged)) and now - self._greeted > SILENCE_SECONDS:
            self.greet()
        if not self.absent and now - self._last_message > ABSENCE_SECONDS:
            self.absent = True
            self.absences += 1
            say(f"no answer from replay for {ABSENCE_SECONDS:g} s: {self.outstanding} chunks are kept until it answers")

    def _end_absence(self) -> None:
        now = time.monotonic()
        if self.absent:
            self.absent = False
            say(f"replay answers again, after {now - self._last_message:.0f} s")
        self._last_message = now

    def close(self) -> None:
        """Says goodbye and closes. Chunks that are still outstanding are lost."""
        self.client.send(Goodbye())
        self.client.close(GOODBYE_SECONDS)

    def greet(self) -> None:
        self._greeted = time.monotonic()
        self.welcomed = False
        first = self.unacknowledged[0].sequence if self.unacknowledged else self._next_sequence
        self.client.send(WriterHello(self._name, self.incarnation, PROTOCOL, self._spec.digest, self._streams, first))

    def _welcome(self, message: WriterWelcome) -> None:
        expected, self.welcomed = not self.welcomed, True
        self.credit = min(message.credit_bytes, MOST_CREDIT_BYTES)
        server = (message.server_incarnation, message.connection)
        # Messages of one connection keep their order, so chunks sent before the greeting that replay does not have are lost. A
        # second answer to the same greeting says nothing about the chunks sent since the first.
        if expected or server != self._server:
            self._server = server
            self._next_to_send = message.next_sequence

    def _send(self) -> None:
        """Sends, in order and within the credit, the chunks that have not been sent over this connection."""
        if not self.welcomed or self._next_to_send >= self._next_sequence:
            return
        first = self._next_sequence - len(self.unacknowledged)  # the oldest chunk that is kept
        for sequence in range(max(self._next_to_send, first), self._next_sequence):
            entry = self.unacknowledged[sequence - first]
            if sequence > first and (sequence - first) * self._spec.chunk_bytes >= self.credit:
                return  # the credit has been reduced
            if not self.client.send(entry.message, entry.parts):
                return
            self._next_to_send = sequence + 1
            self._last_sent = time.monotonic()
            self._sent_below = max(self._sent_below, self._next_to_send)

    def _acknowledge(self, next_sequence: int) -> None:
        while self.unacknowledged and self.unacknowledged[0].sequence < next_sequence:
            entry = self.unacknowledged.popleft()
            self.acknowledged_steps += entry.steps
