"""Vector steps in, chunks out, against a list of all rows per stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from actors import chunker
from actors.chunker import BURSTS, Chunker
from tests.actors.streams import Streams, make_spec
from transport.experience import Chunk, Columns, Continuous


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("length", "stack", "n_step"), [(1, 1, 1), (1, 4, 3), (2, 1, 5), (4, 3, 2), (8, 4, 3), (8, 1, 1), (16, 2, 8)]
)
def test_the_items_of_all_chunks_are_the_stream_and_the_rows_around_them_are_right(
    count: int, length: int, stack: int, n_step: int
) -> None:
    streams = Streams(make_spec(length, stack, n_step), count, seed=length + stack + n_step)
    for _ in range(75):
        for chunk in streams.step():
            assert chunk.length == length, "short though nobody was late"
    before = [len(rows) for rows in streams.expected]
    streams.drain()
    items = streams.check()
    for k in range(count):
        # All that happened; a last row without action may stay behind, since nothing can be drawn there.
        assert items[k] <= before[k]
        assert not any(row["valid"] for row in streams.expected[k][items[k] : before[k]])


@pytest.mark.parametrize("together", [1, 2])
def test_large_chunks_are_cut_a_few_at_a_time_and_are_the_same(together: int, monkeypatch: pytest.MonkeyPatch) -> None:
    spec, cut = make_spec(8, 4, 3), Chunker._cut
    groups = set[int]()

    def counted(chunker: Chunker, where: np.ndarray, length: int) -> Any:
        groups.add(len(where))
        return cut(chunker, where, length)

    monkeypatch.setattr(chunker, "TOGETHER_BYTES", together * spec.chunk_bytes)
    monkeypatch.setattr(Chunker, "_cut", counted)
    streams = Streams(spec, 5, seed=3)
    for _ in range(75):
        streams.step()
    streams.drain()
    assert min(streams.check()) >= 75 and max(groups) == together


@pytest.mark.parametrize(("length", "stack", "n_step"), [(1, 4, 3), (8, 4, 3), (16, 2, 8)])
def test_the_seed_of_an_episode_is_with_the_item_that_begins_it(length: int, stack: int, n_step: int) -> None:
    streams = Streams(make_spec(length, stack, n_step), 3, seed=length)
    given: list[list[tuple[int, int]]] = [[], [], []]  # of each stream: row, seed
    for seed in range(80):
        starts = [k for k in range(3) if not streams.age[k] and streams.random.random() < 0.5]
        streams.chunker.seeded([(k, seed, k) for k in starts])
        for k in starts:
            given[k].append((len(streams.expected[k]), seed))
        streams.step()
    streams.drain()
    for k, chunks in enumerate(streams.chunks):
        first, found = 0, []
        for chunk in chunks:
            found += [(first + start.item, start.seed) for start in chunk.starts]
            assert {start.level for start in chunk.starts} <= {k}
            first += chunk.length
        assert found == [one for one in given[k] if one[0] < first] and len(found) > 3


def test_a_vector_of_reals_is_an_action_too() -> None:
    streams = Streams(make_spec(4, 2, 2, Continuous((-1.0, -1.0), (1.0, 1.0))), 2)
    for _ in range(30):
        streams.step()
    streams.drain()
    assert all(items >= 30 for items in streams.check())


def test_streams_that_are_truncated_at_different_steps_fill_their_chunks_at_different_times() -> None:
    streams = Streams(make_spec(length=8, stack=2, n_step=1), 3)
    never = np.zeros(3, bool)
    for turn in range(8):  # stream 1 is truncated twice, stream 2 once: so many rows more
        truncated = np.array([False, turn in (1, 4), turn == 2])
        assert [chunk.stream for chunk in streams.step(never, truncated)] == ([1] if turn == 6 else [2] if turn == 7 else [])
    assert [chunk.stream for chunk in streams.step(never, never)] == [0]
    streams.drain()
    assert streams.check() == [9, 11, 10]


def test_a_truncation_at_the_last_row_of_a_chunk_is_carried_into_the_next() -> None:
    streams = Streams(make_spec(length=2, stack=1, n_step=1), 1)
    never, now = np.array([False]), np.array([True])
    streams.step(never, never)
    cut = streams.step(never, now)  # rows 0, 1 and the one without action: a full chunk
    assert [chunk.columns["valid"].tolist() for chunk in cut] == [[1, 1, 0]]
    streams.step(never, never)
    following = streams.step(never, never)
    assert [chunk.columns["valid"].tolist() for chunk in following] == [[0, 1, 1]]
    assert following[0].columns["episode_step"].tolist() == [2, 0, 1]
    streams.check()


def test_a_chunk_that_has_waited_too_long_leaves_short_and_no_row_is_lost() -> None:
    streams = Streams(make_spec(length=16, stack=3, n_step=2), 2, seconds=10.0)
    never = np.zeros(2, bool)
    for _ in range(5):
        assert streams.step(never, never) == []
    streams.clock.now += 10.5
    late = streams.step(never, never)
    assert [(chunk.stream, chunk.length) for chunk in late] == [(0, 4), (1, 4)]  # 6 rows, the last two wait for theirs
    assert streams.step(never, never) == [], "the clock of a chunk starts with the chunk"
    streams.clock.now += 10.5
    assert [chunk.length for chunk in streams.step(never, never)] == [2, 2]
    streams.drain()
    assert streams.check() == [8, 8]


def test_only_the_late_stream_sends_a_short_chunk() -> None:
    streams = Streams(make_spec(length=4, stack=1, n_step=1), 2, seconds=10.0)
    never = np.zeros(2, bool)
    one = np.array([True, False])
    streams.clock.now += 6
    streams.step(never, one)
    streams.step(never, one)
    full = streams.step(never, never)  # stream 0: two rows more, hence full now
    assert [(chunk.stream, chunk.length) for chunk in full] == [(0, 4)]
    streams.clock.now += 6
    late = streams.step(never, never)
    assert [(chunk.stream, chunk.length) for chunk in late] == [(1, 3)]
    streams.drain()
    streams.check()


def test_an_empty_chunk_is_never_sent_however_late_it_is() -> None:
    streams = Streams(make_spec(length=8, stack=2, n_step=5), 2, seconds=1.0)
    never = np.zeros(2, bool)
    for _ in range(5):  # the first item's five following rows are not there yet
        streams.clock.now += 2.0
        assert streams.step(never, never) == []
    assert [chunk.length for chunk in streams.step(never, never)] == [1, 1]
    streams.check()


@pytest.mark.parametrize("seed", range(4))
def test_late_chunks_and_full_ones_mix_without_a_row_lost_or_doubled(seed: int) -> None:
    streams = Streams(make_spec(length=8, stack=4, n_step=3), 3, seed, seconds=5.0)
    lengths = set()
    for _ in range(120):
        streams.clock.now += float(streams.random.choice([0.0, 0.1, 3.0]))
        lengths |= {chunk.length for chunk in streams.step()}
    assert 8 in lengths and min(lengths) < 8
    before = [len(rows) for rows in streams.expected]
    streams.drain()
    for k, items in enumerate(streams.check()):
        assert not any(row["valid"] for row in streams.expected[k][items : before[k]])


@pytest.mark.parametrize("n_step", [1, 5])
def test_a_stream_without_a_step_drains_to_nothing(n_step: int) -> None:
    streams = Streams(make_spec(length=1, stack=2, n_step=n_step), 2)
    assert all(chunk.columns["valid"].any() for chunk in streams.drain())
    assert streams.check() == [0, 0]


def test_the_last_items_of_a_drained_stream_are_followed_by_the_observation_that_was_to_come() -> None:
    streams = Streams(make_spec(length=8, stack=1, n_step=3), 1)
    never = np.array([False])
    for _ in range(4):
        streams.step(never, never)
    (chunk,) = streams.drain()
    assert chunk.length == 4
    assert chunk.columns["valid"].tolist() == [1, 1, 1, 1, 0, 0, 0]
    assert chunk.columns["episode_step"].tolist() == [0, 1, 2, 3, 4, 4, 4]
    assert (chunk.columns["place"][4:] == streams.observation["place"][0]).all()
    streams.check()


@pytest.mark.parametrize("count", [1, 3, 8, 20])
def test_staggered_streams_send_their_chunks_evenly_over_time_and_lose_no_row(count: int) -> None:
    spec = make_spec(length=16, stack=2, n_step=3)
    streams = Streams(spec, count)
    streams.chunker = Chunker(spec, count, 1e9, streams.clock, staggered=True)
    never = np.zeros(count, bool)
    leaving = [len(streams.step(never, never)) for _ in range(16 * 6)]
    steady = leaving[2 * 16 :]
    assert sum(steady) == count * len(steady) // 16
    assert max(steady) == -(-count // min(BURSTS, count)), "no more at once than a burst"
    lengths = [[chunk.length for chunk in chunks] for chunks in streams.chunks]
    assert all(length == 16 for chunks in lengths for length in chunks[1:]), "only first chunks are short"
    streams.drain()
    assert all(items >= 16 * 6 for items in streams.check())


def test_chunks_that_leave_together_are_annotated_together() -> None:
    spec = make_spec(length=4, stack=2, n_step=1)
    seen: list[tuple[int, ...]] = []

    def annotate(columns: Columns) -> Columns:
        seen.append(columns["reward"].shape)
        return columns | {"log_prob": columns["reward"] + columns["scratch"][..., 0]}

    streams = Streams(spec, 3)
    streams.chunker = Chunker(spec, 3, 1e9, streams.clock, annotate)
    never = np.zeros(3, bool)
    ones = np.ones(3, np.float32)
    scratch = {"scratch": np.ones((3, 2))}
    chunks: list[Chunk] = []
    for _ in range(5):
        chunks += streams.chunker.step(streams.observation, ones, ones, never, never, streams.observation, 0, scratch)
    assert seen == [(3, spec.rows(4))]
    assert [chunk.stream for chunk in chunks] == [0, 1, 2]
    assert all(chunk.columns["log_prob"].tolist() == [0, 2, 2, 2, 2, 2] for chunk in chunks)
    assert all(list(chunk.columns) == [column.name for column in spec.columns] for chunk in chunks), "scratch does not leave"


def test_streams_that_are_truncated_at_every_step_need_no_more_room_than_there_is() -> None:
    streams = Streams(make_spec(length=8, stack=3, n_step=2), 4)
    never, always = np.zeros(4, bool), np.ones(4, bool)
    for turn in range(200):
        streams.step(never, always if turn % 50 < 40 else never)
    streams.drain()
    assert all(items > 300 for items in streams.check())
