"""Lossless compression of a chunk's columns. The spec gives the codec of each column and limits all sizes.

Each large column (one with a codec) becomes one part, compressed over the whole chunk, because consecutive frames are similar.
All other columns are concatenated, uncompressed, in one last part.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence

import cramjam
import numpy as np
import zstandard

from transport.experience import Chunk, Columns, ExperienceSpec

ZSTD_LEVEL = 1
EXPANSION = 1.02  # the most that compression can enlarge a column, plus a constant


class CorruptChunk(ValueError):
    """Parts that do not make up a chunk of the spec; the text gives the reason."""


def compress(codec: str, data: memoryview) -> bytes:
    """Compresses with the named codec; "none" copies."""
    if codec == "lz4":
        buffer = np.empty(cramjam.lz4.compress_block_bound(data), np.uint8)  # compress_block would fill it with zeros first
        return buffer[: cramjam.lz4.compress_block_into(data, buffer.data, store_size=False)].tobytes()
    if codec == "zstd":
        return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_content_size=False).compress(data)
    return bytes(data)


def decompress(codec: str, data: bytes, out: np.ndarray) -> None:
    """Fills `out` [N] uint8, whose size comes from the spec, never from the wire. Raises CorruptChunk."""
    size = len(out)
    try:
        if codec == "lz4":
            found = cramjam.lz4.decompress_block_into(data, out.data)
        else:
            # zstandard allocates the size that a frame declares, so a wrong one is rejected first.
            declared = zstandard.frame_content_size(data)
            if declared not in (-1, size):
                raise CorruptChunk(f"zstd frame declares {declared} bytes, the spec says {size}")
            plain = zstandard.ZstdDecompressor().decompress(data, max_output_size=size)
            found = len(plain)
            out[:found] = np.frombuffer(plain, np.uint8)
    except (cramjam.DecompressionError, zstandard.ZstdError) as error:
        raise CorruptChunk(f"{codec}: {error}") from error
    if found != size:
        raise CorruptChunk(f"{codec}: {found} bytes, the spec says {size}")


def chunk_wire_bytes(spec: ExperienceSpec) -> int:
    """The maximum number of bytes in the parts of one chunk."""
    return int(spec.chunk_bytes * EXPANSION) + 1024 * len(spec.large)


def pack_chunk(spec: ExperienceSpec, chunk: Chunk) -> list[bytes]:
    """Makes the raw parts of an Insert."""
    parts = [compress(column.codec, np.ascontiguousarray(chunk.columns[column.name]).data.cast("B")) for column in spec.large]
    parts.append(b"".join([np.ascontiguousarray(chunk.columns[column.name]).data for column in spec.small]))
    return parts


def unpack_chunk(spec: ExperienceSpec, length: int, parts: Sequence[bytes], room: Columns | None = None) -> Columns:
    """The columns of a chunk, as Chunk describes them. Raises CorruptChunk if the parts do not fit the spec.

    Large columns are decompressed into the first rows of their arrays in `room`. Small ones are read-only views of the last part.
    """
    rows, large = spec.rows(length), spec.large
    if len(parts) != len(large) + 1:
        raise CorruptChunk(f"{len(parts)} parts, the spec says {len(large) + 1}")
    expected = spec.small_bytes(rows)
    if len(parts[-1]) != expected:
        raise CorruptChunk(f"{len(parts[-1])} bytes of small columns, the spec says {expected}")
    columns: Columns = {}
    for column, part in zip(large, parts, strict=False):
        array = room.get(column.name) if room else None  # no room in the table for a column that it does not keep
        if array is None:
            array = np.empty(column.chunk_shape(rows), column.dtype)
        elif not column.once:
            array = array[:rows]
        decompress(column.codec, part, array.reshape(-1).view(np.uint8))
        columns[column.name] = array
    offset = 0
    for column in spec.small:
        shape = column.chunk_shape(rows)
        array = np.frombuffer(parts[-1], column.dtype, count=math.prod(shape), offset=offset)
        columns[column.name] = array.reshape(shape)
        offset += array.nbytes
    return columns


def crc32(parts: Sequence[bytes]) -> int:
    """The checksum over all parts in order."""
    checksum = 0
    for part in parts:
        checksum = zlib.crc32(part, checksum)
    return checksum
