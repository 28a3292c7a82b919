"""What has arrived from actors and is not used yet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from replay.table import RejectedChunk, check_values
from transport.compression import CorruptChunk, crc32, unpack_chunk
from transport.experience import Chunk, Columns, ExperienceSpec
from transport.messages import Insert


@dataclass(eq=False)
class Writer:
    """What the server knows of one life of one actor."""

    name: str
    incarnation: int
    streams: int
    peer: bytes
    connection: int
    received: int  # every sequence below has arrived
    inserted: int = 0  # every sequence below is done with: in the table, drawn, or dropped
    acknowledged: int = 0  # every sequence below is known to be, as far as the writer has been told
    waiting: int = 0  # arrived, not done with yet
    credit_bytes: int = 0  # as far as the writer has been told
    present: bool = True  # holds credit; what has arrived is remembered for good, lest one who comes back is taken twice


class Pending(NamedTuple):
    """A chunk that has arrived and waits, packed as it came."""

    writer: Writer
    message: Insert
    parts: list[bytes]


def read_arrival(spec: ExperienceSpec, message: Insert, parts: list[bytes], room: Columns) -> Chunk:
    """A chunk whose large columns lie in `room`. Raises RejectedChunk for one that is not fit to be learned from."""
    try:
        if message.length > spec.chunk_length:
            raise CorruptChunk(f"{message.length} items")
        if crc32(parts) != message.crc32:
            raise CorruptChunk("checksum differs")
        chunk = Chunk(message.stream, message.length, unpack_chunk(spec, message.length, parts, room))
    except CorruptChunk as error:
        raise RejectedChunk(str(error)) from error
    check_values(spec, chunk)
    return chunk
