"""Sequences: whole chunks that are drawn repeatedly, one leaf each, with the recurrent state of their first row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.table.layout import PRIORITY, layout
from replay.table.ring import Ring
from tests.harness.link import Link
from tests.replay.examples import Logged, draw
from transport.experience import Categorical, Chunk, Column, ExperienceSpec, observed

STATE = Column("memory/h", (3,), "<f4", once=True)
SEQUENCE_PRIORITY = Column(PRIORITY, (), "<f4", once=True, rests=False, check="any", default=-1.0)
SPEC = ExperienceSpec(
    (observed("position", (), "<f4"),),
    Categorical(4),
    4,
    stack=2,
    n_step=2,
    burn_in=3,
    unit="sequences",
    extras=(STATE, SEQUENCE_PRIORITY),
)
CONFIG = ReplayConfig(capacity=32, min_size=4, samples_per_insert_low=0.0, samples_per_insert_high=1e9)


def make_chunk(number: int, length: int = 4, valid: int = 1, priority: float = -1.0) -> Chunk:
    """A chunk whose values identify it."""
    rows = SPEC.rows(length)
    columns = {column.name: np.zeros(column.chunk_shape(rows), column.dtype) for column in SPEC.columns}
    columns["position"][:] = 100 * number + np.arange(rows)
    columns["valid"][:] = valid
    columns["memory/h"][:] = number + np.arange(3) / 10
    columns[PRIORITY] = np.array(priority, np.float32)
    return Chunk(0, length, columns)


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    with Link(tmp_path, SPEC, CONFIG) as made:
        yield made


def test_a_chunk_has_the_rows_of_the_burn_in_before_its_items() -> None:
    assert (SPEC.history, SPEC.rows(4)) == (4, 4 + 4 + 2)
    assert dict((name, shape) for name, shape, _ in layout(SPEC, 5).arrays)["observation/position"] == (5, 10)
    assert dict((name, shape) for name, shape, _ in layout(SPEC, 5).arrays)["memory/h"] == (5, 3)


def test_whole_chunks_are_drawn_as_they_were_sent() -> None:
    ring = Ring(SPEC, CONFIG, seed=0)
    for number in range(3):
        ring.insert(make_chunk(number))
    batch = draw(ring, 30)
    assert set(batch["key"].tolist()) == {0, 1, 2}
    for b, key in enumerate(batch["key"].tolist()):
        assert batch["observation/position"][b].tolist() == (100 * key + np.arange(10)).tolist()
        assert batch["memory/h"][b] == pytest.approx(key + np.arange(3) / 10)
        assert batch["length"][b] == 4
    assert batch["probability"] == pytest.approx(1 / 3)
    ring.check_invariants()


def test_size_counters_and_the_limiter_count_transitions() -> None:
    ring = Ring(SPEC, CONFIG, seed=0)
    assert ring.insert(make_chunk(0)) == 4 and ring.size == 4
    draw(ring, 5)
    assert ring.sampled_items == 20


def test_the_rows_behind_a_short_chunk_are_zero_although_a_longer_one_was_there() -> None:
    ring = Ring(SPEC, CONFIG, seed=0)
    for number in range(9):  # all slots have been used
        ring.insert(make_chunk(number))
    ring.insert(make_chunk(9, length=1))
    batch = draw(ring, 200)
    short = batch["key"] == 9
    assert short.any() and (batch["length"][short] == 1).all()
    assert not batch["observation/position"][short][:, SPEC.rows(1) :].any()


def test_a_sequence_without_any_action_is_never_drawn() -> None:
    ring = Ring(SPEC, CONFIG, seed=0)
    ring.insert(make_chunk(0))
    assert ring.insert(make_chunk(1, valid=0)) == 0
    assert set(draw(ring, 50)["key"].tolist()) == {0}
    assert ring.update_priorities(np.array([1]), np.array([5.0])) == 0
    ring.check_invariants()


@pytest.mark.parametrize("unknown", [-1.0, np.nan, np.inf])
def test_a_sequence_starts_with_its_own_priority_or_the_highest(unknown: float) -> None:
    ring = Ring(SPEC, ReplayConfig(capacity=32, min_size=4, priority_exponent=1.0), seed=0)
    for number, priority in enumerate((8.0, 2.0, unknown)):
        ring.insert(make_chunk(number, priority=priority))
    batch = draw(ring, 90)
    expected = np.array([8, 2, 8]) / 18
    assert batch["probability"] == pytest.approx(expected[batch["key"]])
    assert ring.update_priorities(np.array([0, 99]), np.array([4.0, 4.0])) == 1, "keys are those of chunks"
    batch = draw(ring, 90)
    assert batch["probability"] == pytest.approx((np.array([4, 2, 8]) / 14)[batch["key"]])


def test_priorities_and_states_survive_a_restart(tmp_path: Path) -> None:
    first = Logged(tmp_path, SPEC, CONFIG)
    for number in range(5):
        first.append(make_chunk(number), number)
    first.ring.update_priorities(np.arange(5), np.arange(1.0, 6.0))
    first.stop()
    again = Logged(tmp_path, SPEC, CONFIG, seed=1)
    again.stop()
    assert again.values() == first.values() and again.ring.size == 20
    batch = draw(again.ring, 40)
    assert batch["memory/h"][:, 0] == pytest.approx(batch["key"].astype(float))


def test_sequences_go_from_a_writer_to_a_learner_and_their_priorities_back(link: Link) -> None:
    server = link.serve()
    writer, sampler = link.writer(), link.sampler(batch_size=2)
    for number in range(4):
        writer.insert(make_chunk(number, priority=1.0))
    batch = link.batch(sampler, writer)
    for b, key in enumerate(batch.arrays["key"].tolist()):
        assert batch.arrays["observation/position"][b].tolist() == (100 * key + np.arange(10)).tolist()
        assert batch.arrays["memory/h"][b, 0] == pytest.approx(key)
    keys = batch.arrays["key"].copy()
    sampler.answer(batch, np.full(2, 6.0, np.float32))
    sampler.update_priorities(keys, np.full(2, 7.0, np.float32))
    link.until(lambda: server.ring.state().selector.values.max() == pytest.approx(7.0**0.6), writer)
    assert link.metrics.value("sampled_items") % 8 == 0, "counted in transitions"
