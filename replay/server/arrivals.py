"""What has arrived from actors and is not used yet."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

from replay.table.checks import RejectedChunk, check_chunk
from transport.compression import CorruptChunk, crc32, unpack_chunk
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages import Insert

GRACE_SECONDS = 10.0  # in which a writer that is told a smaller credit may not have heard of it yet


@dataclass(eq=False)
class Writer:
    """What the server knows of one life of one actor."""

    name: str
    incarnation: int
    streams: int
    peer: bytes
    connection: int
    received: int  # every sequence below has arrived
    first: int = 0  # the sequence that it began with, as far as this server knows
    inserted: int = 0  # every sequence below is done with: in the table, drawn, or dropped
    acknowledged: int = 0  # every sequence below is known to be, as far as the writer has been told
    waiting: int = 0  # arrived, not done with yet
    rejected: int = 0  # chunks that were not fit to be learned from,
    charged: int = 0  # and those of them that it has been made to answer for
    credit_bytes: int = 0  # as far as the writer has been told
    granted_bytes: int = 0  # credit that it may still act upon: a smaller one takes a while to reach it
    reduced_at: float = math.inf  # when its credit became smaller than what is granted
    heard: float = 0.0  # when anything last came from it
    told: float = -math.inf  # when its silence was last told
    deaf: bool = False  # something of it was lost or dropped: nothing more is taken until it has greeted

    def grant(self, credit_bytes: int) -> None:
        """The writer is told this credit now."""
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
    """A chunk that has arrived and waits, packed as it came."""

    writer: Writer
    message: Insert
    parts: list[bytes]


def regrouped(message: Insert, parts: list[bytes]) -> list[bytes]:
    """The parts of a chunk that was cut to the frame limit; none where they are not what the message says."""
    if not message.sizes:
        return parts
    payload = b"".join(parts)
    if sum(message.sizes) != len(payload):
        return []
    ends = list(accumulate(message.sizes))
    return [payload[end - size : end] for end, size in zip(ends, message.sizes, strict=True)]


def read_arrival(spec: ExperienceSpec, pending: Pending, room: Columns, reward_limit: float) -> Chunk:
    """A chunk whose large columns lie in `room`. Raises RejectedChunk for one that is not fit to be learned from."""
    message, parts = pending.message, pending.parts
    try:
        if message.length > spec.chunk_length:
            raise CorruptChunk(f"{message.length} items")
        if message.stream >= pending.writer.streams:
            raise CorruptChunk(f"stream {message.stream} of {pending.writer.streams}")
        if crc32(parts) != message.crc32:
            raise CorruptChunk("checksum differs")
        chunk = Chunk(message.stream, message.length, unpack_chunk(spec, message.length, parts, room))
    except CorruptChunk as error:
        raise RejectedChunk(str(error)) from error
    check_chunk(spec, chunk, reward_limit)
    return chunk
