"""Packing chunks into parts, and refusing invalid parts."""

from __future__ import annotations

import cramjam
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from transport.compression import CorruptChunk, chunk_wire_bytes, decompress, pack_chunk, unpack_chunk
from transport.experience import Categorical, Chunk, Column, ExperienceSpec, observed


def spec_with(codec: str) -> ExperienceSpec:
    fields = (observed("frame", (12, 12), "|u1", 1 / 255, codec=codec), observed("speed", (3,), "<f4"))  # type: ignore[arg-type]
    return ExperienceSpec(fields, Categorical(5), chunk_length=16, stack=4, n_step=3)


def random_chunk(spec: ExperienceSpec, length: int, seed: int = 0) -> Chunk:
    generator = np.random.default_rng(seed)
    columns = {
        column.name: generator.integers(0, 200, (spec.rows(length), *column.shape)).astype(column.dtype)
        for column in spec.columns
    }
    return Chunk(0, length, columns)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("length", [1, 7, 16])
def test_a_chunk_comes_back_as_it_was(codec: str, length: int) -> None:
    spec = spec_with(codec)
    chunk = random_chunk(spec, length)
    parts = pack_chunk(spec, chunk)
    assert sum(map(len, parts)) <= chunk_wire_bytes(spec)
    columns = unpack_chunk(spec, length, parts)
    assert all((columns[name] == chunk.columns[name]).all() for name in chunk.columns)
    assert len(parts) == (1 if codec == "none" else 2)


def test_a_compressed_column_that_replay_does_not_keep_is_unpacked_outside_the_room() -> None:
    fields = (observed("frame", (12, 12), "|u1", codec="lz4"),)
    spec = ExperienceSpec(fields, Categorical(5), chunk_length=4, extras=(Column("map", (9,), "|u1", codec="lz4", rests=False),))
    chunk, room = random_chunk(spec, 3), {"frame": np.zeros((spec.rows(4), 12, 12), np.uint8)}
    columns = unpack_chunk(spec, 3, pack_chunk(spec, chunk), room)
    assert np.shares_memory(columns["frame"], room["frame"])
    assert all((columns[name] == chunk.columns[name]).all() for name in chunk.columns)


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_declared_size_is_never_allocated(codec: str) -> None:
    huge = bytes(50_000_000)
    lz4, zstd = bytes(cramjam.lz4.compress_block(huge, store_size=False)), zstandard.ZstdCompressor().compress(huge)
    with pytest.raises(CorruptChunk):
        decompress(codec, lz4 if codec == "lz4" else zstd, np.zeros(1000, np.uint8))


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
@given(junk=st.lists(st.binary(max_size=300), max_size=4))
def test_junk_is_refused_and_nothing_worse(codec: str, junk: list[bytes]) -> None:
    with pytest.raises(CorruptChunk):
        unpack_chunk(spec_with(codec), 7, junk)


@pytest.mark.parametrize("codec", ["none", "lz4", "zstd"])
def test_a_chunk_cut_short_is_refused(codec: str) -> None:
    spec = spec_with(codec)
    parts = pack_chunk(spec, random_chunk(spec, 7))
    for index in range(len(parts)):
        with pytest.raises(CorruptChunk):
            unpack_chunk(spec, 7, [part[:-1] if index == at else part for at, part in enumerate(parts)])
    with pytest.raises(CorruptChunk):
        unpack_chunk(spec, 8, parts)
