"""Chunks that have arrived and are not used yet, and the actors that they come from."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from replay.table.checks import RejectedChunk, check_chunk
from transport.compression import CorruptChunk, crc32, unpack_chunk
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages import Insert

GRACE_SECONDS = 10.0  # in which a writer may not have received a smaller credit yet


@dataclass(eq=False)
class Writer:
    """What the server knows of one incarnation of an actor."""

    name: str
    incarnation: int
    streams: int
    peer: bytes
    connection: int
    received: int  # every sequence below has arrived
    first: int = 0  # the sequence that it began with, as far as this server knows
    inserted: int = 0  # every sequence below is done with: in the table, drawn, or dropped
    acknowledged: int = 0  # every sequence below has been acknowledged
    waiting: int = 0  # chunks in the inbox
    rejected: int = 0  # chunks that could not be learned from,
    charged: int = 0  # and how many of these have been counted as offences
    credit_bytes: int = 0  # as sent last
    granted_bytes: int = 0  # credit that it may still act upon: a smaller one takes a while to reach it
    reduced_at: float = math.inf  # when its credit became smaller than what is granted
    heard: float = 0.0  # when anything last came from it
    silence_reported: float = -math.inf  # when
    out_of_step: bool = False  # something of it was lost or dropped: nothing more is taken until it has greeted

    def grant(self, credit_bytes: int) -> None:
        """The writer is sent this credit now."""
        now = time.monotonic()
        self.credit_bytes = credit_bytes
        if credit_bytes >= self.granted_bytes or now > self.reduced_at + GRACE_SECONDS:
            self.granted_bytes, self.reduced_at = credit_bytes, math.inf
        elif self.reduced_at == math.inf:
            self.reduced_at = now

    def overdraws(self, chunk_bytes: int) -> bool:
        """Whether one more chunk is more than it may have under way. With nothing under way one always is allowed."""
        return self.waiting > 0 and self.waiting * chunk_bytes >= self.granted_bytes


class Pending(NamedTuple):
    """A chunk that waits, packed as it came."""

    writer: Writer
    message: Insert
    parts: list[bytes]

    def read(self, spec: ExperienceSpec, room: Columns, reward_limit: float) -> Chunk:
        """The chunk, its large columns in `room`. Raises RejectedChunk for one that cannot be learned from."""
        message = self.message
        try:
            if message.length > spec.chunk_length:
                raise CorruptChunk(f"{message.length} items")
            if message.stream >= self.writer.streams:
                raise CorruptChunk(f"stream {message.stream} of {self.writer.streams}")
            if crc32(self.parts) != message.crc32:
                raise CorruptChunk("checksum differs")
            chunk = Chunk(message.stream, message.length, unpack_chunk(spec, message.length, self.parts, room))
        except CorruptChunk as error:
            raise RejectedChunk(str(error)) from error
        check_chunk(spec, chunk, reward_limit)
        return chunk


class Inbox:
    """The chunks of all actors, oldest first, and the actors whose chunks have been used since they were last acknowledged."""

    def __init__(self, room: int = 0) -> None:
        """`room`: chunks that may wait in any case."""
        self.room = room
        self.pending: deque[Pending] = deque()
        self.advanced: set[Writer] = set()

    def put(self, writer: Writer, message: Insert, parts: list[bytes]) -> None:
        """`parts` as they came over the wire."""
        writer.received = message.sequence + 1
        writer.waiting += 1
        self.pending.append(Pending(writer, message, regrouped(message, parts)))

    def use(self, chunk: Pending) -> None:
        """The oldest chunk of its writer, taken from `pending`, is done with."""
        chunk.writer.inserted = chunk.message.sequence + 1
        chunk.writer.waiting -= 1
        self.advanced.add(chunk.writer)

    def use_out_of_order(self, chunks: Iterable[Pending]) -> None:
        """Chunks taken from anywhere in `pending` are done with; a writer gets on as far as no older chunk of it waits."""
        for chunk in chunks:
            chunk.writer.waiting -= 1
            self.advanced.add(chunk.writer)
        for writer in self.advanced:
            left = (chunk.message.sequence for chunk in self.pending if chunk.writer is writer)
            writer.inserted = next(left, writer.received)


def regrouped(message: Insert, parts: list[bytes]) -> list[bytes]:
    """The parts of a chunk that was cut to the frame limit; none where they are not what the message says."""
    if not message.sizes:
        return parts
    payload = b"".join(parts)
    if sum(message.sizes) != len(payload):
        return []
    ends = list(accumulate(message.sizes))
    return [payload[end - size : end] for end, size in zip(ends, message.sizes, strict=True)]
