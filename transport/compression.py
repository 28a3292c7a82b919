"""Lossless compression of a chunk's columns, chosen per field and bounded by the spec.

Large columns (those that name a codec) become one part each, compressed over the whole chunk, which is what makes
consecutive frames cheap. All others are packed, raw, one after the other into one last part.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import cramjam
import numpy as np
import zstandard

from transport.experience import Chunk, Columns, ExperienceSpec, column_bytes

ZSTD_LEVEL = 1
EXPANSION = 1.02  # what an incompressible column may grow by, plus a constant


class CorruptChunk(ValueError):
    """Parts that are not the chunk they claim to be: the text says in which way."""


def compress(codec: str, data: memoryview) -> bytes:
    """Compresses with the named codec; "none" copies."""
    if codec == "lz4":
        room = np.empty(cramjam.lz4.compress_block_bound(data), np.uint8)  # compress_block would fill it with zeros first
        return room[: cramjam.lz4.compress_block_into(data, room.data, store_size=False)].tobytes()
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False).compress(data)
    return bytes(data)


def decompress(codec: str, data: bytes, out: np.ndarray) -> None:
    """Fills `out` [N] uint8, whose size the caller takes from the spec and never from the wire. Raises CorruptChunk."""
    size = len(out)
    try:
        if codec == "lz4":
            found = cramjam.lz4.decompress_block_into(data, out.data)
        else:
            # A frame that claims its size is refused unless the claim is ours: the claim would be allocated unseen.
            claimed = zstandard.frame_content_size(data)
            if claimed not in (-1, size):
                raise CorruptChunk(f"zstd frame claims {claimed} bytes, the spec says {size}")
            plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            found = len(plain)
            out[:found] = np.frombuffer(plain, np.uint8)
    except (cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise CorruptChunk(f"{codec}: {error}") from error
    if found != size:
        raise CorruptChunk(f"{codec}: {found} bytes where the spec says {size}")


def chunk_wire_bytes(spec: ExperienceSpec) -> int:
    """The most bytes that the parts of one chunk can take."""
    return int(spec.chunk_bytes * EXPANSION) + 1024 * len(spec.large)


def pack_chunk(spec: ExperienceSpec, chunk: Chunk) -> list[bytes]:
    """The raw parts of an Insert."""
    parts = [compress(column.codec, np.ascontiguousarray(chunk.columns[column.name]).data.cast("B")) for column in spec.large]
    parts.append(b"".join([np.ascontiguousarray(chunk.columns[column.name]).data for column in spec.small]))
    return parts


def unpack_chunk(spec: ExperienceSpec, length: int, parts: Sequence[bytes], room: Columns | None = None) -> Columns:
    """The columns of a chunk, as Chunk describes them. Raises CorruptChunk when the parts do not fit the spec.

    Compressed ones are decompressed into the first rows of their arrays in `room`, the others are read-only views of the parts.
    """
    rows, large, small = spec.rows(length), spec.large, spec.small
    if len(parts) != len(large) + 1:
        raise CorruptChunk(f"{len(parts)} parts where the spec says {len(large) + 1}")
    expected = column_bytes(small, rows)
    if len(parts[-1]) != expected:
        raise CorruptChunk(f"{len(parts[-1])} bytes of small columns where the spec says {expected}")
    columns: Columns = {}
    for column, part in zip(large, parts, strict=False):
        if room:
            array = room[column.name] if column.once else room[column.name][:rows]
        else:
            array = np.empty(column.chunk_shape(rows), column.dtype)
        decompress(column.codec, part, array.reshape(-1).view(np.uint8))
        columns[column.name] = array
    offset = 0
    for column in small:
        shape = column.chunk_shape(rows)
        array = np.frombuffer(parts[-1], column.dtype, count=math.prod(shape), offset=offset)
        columns[column.name] = array.reshape(shape)
        offset += column.rows(rows) * column.row_bytes
    return columns


def crc32(parts: Sequence[bytes]) -> int:
    """Checksum over all parts in order."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
