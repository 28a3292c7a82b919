"""Whole chunks, each drawn once, over a real socket: acknowledged when drawn, credit for a batch, age."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from replay.client import ExperienceWriter, SampledBatch, Sampler
from replay.config import ReplayConfig
from replay.storage import resting_columns, rollout_array
from tests.replay.examples import make_spec, stream_chunks
from tests.replay.link import Link
from transport.experience import Chunk, ExperienceSpec

SPEC = make_spec(length=4, stack=3, n_step=1, remembered=("log_prob",))
CHUNKS = stream_chunks(SPEC, {9: "truncated", 17: "terminated"}, 161)
FIFO = ReplayConfig(selector="fifo", capacity=4_000)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, FIFO) as made:
        yield made


class Feeder:
    """An actor: sends chunks in order, as far as it has credit."""

    def __init__(self, writer: ExperienceWriter, chunks: list[Chunk]) -> None:
        self.writer, self.chunks, self.sent = writer, chunks, 0

    def feed(self) -> None:
        while self.writer.has_credit and self.sent < len(self.chunks):
            self.writer.insert(self.chunks[self.sent])
            self.sent += 1


def drawn(batch: SampledBatch, spec: ExperienceSpec = SPEC) -> list[dict[str, np.ndarray]]:
    """The rollouts of a batch, each cut to its rows and copied; what lies behind must be zero."""
    rollouts = []
    for b, length in enumerate(batch.arrays["length"].tolist()):
        arrays = {column.name: batch.arrays[rollout_array(spec, column.name)][b] for column in resting_columns(spec)}
        assert not any(array[spec.rows(length) :].any() for array in arrays.values())
        rollouts.append({name: array[: spec.rows(length)].copy() for name, array in arrays.items()})
    return rollouts


def same(rollout: dict[str, np.ndarray], chunk: Chunk) -> bool:
    """Byte for byte."""
    return all(rollout[name].tobytes() == chunk.columns[name].tobytes() for name in rollout)


def take(link: Link, sampler: Sampler, *feeders: Feeder, spec: ExperienceSpec = SPEC) -> list[dict[str, np.ndarray]]:
    """The rollouts of the next batch, its slot given back."""
    found: list[SampledBatch] = []

    def turn() -> bool:
        for feeder in feeders:
            feeder.feed()
        if batch := sampler.next(0):
            found.append(batch)
        return bool(found)

    link.until(turn, *(feeder.writer for feeder in feeders), seconds=20)
    rollouts = drawn(found[0], spec)
    sampler.release(found[0])
    return rollouts


@pytest.mark.parametrize("shared", [True, False])
def test_rollouts_are_the_chunks_byte_for_byte_in_order_and_once(link: Link, shared: bool) -> None:
    link.serve()
    feeder, sampler = Feeder(link.writer(), CHUNKS), link.sampler(shared, slots=1, batch_size=3, rollouts=True)
    found = [rollout for _ in range(len(CHUNKS) // 3) for rollout in take(link, sampler, feeder)]
    assert all(same(rollout, chunk) for rollout, chunk in zip(found, CHUNKS, strict=False))
    assert link.metrics.value("duplicates") == link.metrics.value("dropped_chunks") == 0
