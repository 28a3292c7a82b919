"""Chunks that have arrived and wait, the actors that sent them, and the checks that each chunk must pass."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from replay.config import LARGEST
from transport.compression import CorruptChunk, crc32, unpack_chunk
from transport.experience import Categorical, Chunk, Column, Columns, ExperienceSpec, MultiCategorical
from transport.messages.replay import Insert

GRACE_SECONDS = 10.0  # in which a writer may not have received a reduced credit yet


class RejectedChunk(ValueError):
    """A chunk that must not be learned from; the text gives the reason."""


def check_chunk(spec: ExperienceSpec, chunk: Chunk) -> None:
    """Raises RejectedChunk for actions that do not exist, and for values that the `check` of a column or a limit forbids.

    Beyond the limits a value is finite, but would outweigh all others, or overflow in the network.
    """
    used = chunk.columns["valid"] != 0
    action = chunk.columns["action"][used]
    if isinstance(spec.action, Categorical):
        if action.size and (action.min() < 0 or action.max() >= spec.action.n):
            raise RejectedChunk(f"an action outside 0 to {spec.action.n - 1}")
    elif isinstance(spec.action, MultiCategorical) and ((action < 0) | (action >= spec.action.sizes)).any():
        raise RejectedChunk("an action with a choice that does not exist")
    for column in spec.columns:
        if column.check != "any":
            _check(column, chunk.columns[column.name], used)


def _check(column: Column, values: np.ndarray, used: np.ndarray) -> None:
    """`used` [rows]: the rows with an action."""
    if column.check == "natural":
        if values.size and values.min() < 0:
            raise RejectedChunk(f"a negative {column.name}")
        return
    if column.dtype.startswith("<f") and not np.isfinite(values).all():
        raise RejectedChunk(f"{column.name} is not finite")
    if column.check == "reward" and _magnitude(values if column.once else values[used]) > LARGEST:
        raise RejectedChunk(f"a {column.name} beyond {LARGEST:g}")
    if column.taken == "window" and column.dtype.startswith("<f") and _magnitude(values) > LARGEST:
        raise RejectedChunk(f"{column.name} has a value beyond {LARGEST:g}")


def _magnitude(values: np.ndarray) -> float:
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


@dataclass(eq=False, slots=True)
class Writer:
    """The server's record of one incarnation of an actor."""

    name: str
    incarnation: int
    streams: int
    peer: bytes
    connection: int
    received: int  # all sequences below have arrived
    first: int = 0  # the first sequence that this server can get
    inserted: int = 0  # all sequences below are finished: in the table, drawn, or dropped
    acknowledged: int = 0  # all sequences below have been acknowledged
    waiting: int = 0  # chunks in the inbox
    rejected: int = 0  # chunks that were rejected
    fault: str = ""  # why the last one was
    charged: int = 0  # rejected chunks that have been counted as offences
    credit: int = 0  # bytes, sent last
    usable_credit: int = 0  # bytes that the writer may still use: a reduced credit takes a while to arrive
    reduced_at: float = math.inf  # when the credit became smaller than the usable one
    last_message: float = 0.0  # time
    silence_reported: float = -math.inf  # time
    out_of_step: bool = False  # a chunk was lost or dropped: no chunk is accepted before the next greeting

    def grant(self, credit: int) -> None:
        """Notes that this credit is sent to the writer now."""
        now = time.monotonic()
        self.credit = credit
        if credit >= self.usable_credit or now > self.reduced_at + GRACE_SECONDS:
            self.usable_credit, self.reduced_at = credit, math.inf
        elif self.reduced_at == math.inf:
            self.reduced_at = now

    def overdraws(self, chunk_bytes: int) -> bool:
        """True if one more chunk exceeds the credit. If no chunk waits, one is always allowed."""
        return self.waiting > 0 and self.waiting * chunk_bytes >= self.usable_credit


class Pending(NamedTuple):
    """A chunk that waits, packed as it came."""

    writer: Writer
    message: Insert
    parts: list[bytes]

    def read(self, spec: ExperienceSpec, room: Columns) -> Chunk:
        """Unpacks the chunk, its large columns into `room`. Raises RejectedChunk."""
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
        check_chunk(spec, chunk)
        return chunk


class Inbox:
    """The waiting chunks of all actors, oldest first, and the writers with chunks finished since the last acknowledgement."""

    def __init__(self, room: int = 0) -> None:
        """`room`: chunks that may wait in any case."""
        self.room = room
        self.pending: deque[Pending] = deque()
        self.advanced: set[Writer] = set()

    def put(self, writer: Writer, message: Insert, parts: list[bytes]) -> None:
        """`parts` as they came over the wire."""
        writer.received = message.sequence + 1
        writer.waiting += 1
        self.pending.append(Pending(writer, message, join_pieces(message, parts)))

    def use(self, chunk: Pending) -> None:
        """Marks a chunk, taken from `pending` and the oldest of its writer, as finished."""
        chunk.writer.inserted = chunk.message.sequence + 1
        chunk.writer.waiting -= 1
        self.advanced.add(chunk.writer)

    def use_out_of_order(self, chunks: Iterable[Pending]) -> None:
        """Marks chunks, taken from anywhere in `pending`, as finished. A writer advances up to its oldest waiting chunk."""
        for chunk in chunks:
            chunk.writer.waiting -= 1
            self.advanced.add(chunk.writer)
        for writer in self.advanced:
            waiting = (chunk.message.sequence for chunk in self.pending if chunk.writer is writer)
            writer.inserted = next(waiting, writer.received)


def join_pieces(message: Insert, parts: list[bytes]) -> list[bytes]:
    """The parts of a chunk, joined if they were cut to the frame limit; empty if they do not match the message's sizes."""
    if not message.sizes:
        return parts
    payload = b"".join(parts)
    if sum(message.sizes) != len(payload):
        return []
    ends = list(accumulate(message.sizes))
    return [payload[end - size : end] for end, size in zip(ends, message.sizes, strict=True)]
