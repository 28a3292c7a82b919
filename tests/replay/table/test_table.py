"""The ring: batches at every kind of episode boundary, eviction, keys, priorities."""

from __future__ import annotations

from collections import deque

import msgspec
import numpy as np
import pytest

from learner.algorithms.base import Needs, join
from replay.config import ReplayConfig
from replay.table.inbox import RejectedChunk, check_chunk
from replay.table.layout import PRIORITY, layout, overhead_bytes, slot_bytes
from replay.table.ring import Ring
from replay.table.storage import steps_to_boundary
from tests.replay.examples import draw, every_item, make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, Continuous, ExperienceSpec, observed

CONFIG = ReplayConfig(capacity=10_000, budget_bytes=10**9, min_size=1, samples_per_insert_high=1e9, samples_per_insert_low=0)


def all_items(spec: ExperienceSpec, chunks: list[Chunk]) -> dict[float, dict[str, np.ndarray]]:
    """Every item of a stream by the position of its observation, through a table."""
    table = Ring(spec, CONFIG, seed=0)
    total = sum(table.insert(chunk) for chunk in chunks)
    batch = every_item(table)
    items = [{name: array[b] for name, array in batch.items()} for b in range(total)]
    return {float(item["observation/position"][item["observation_index"][-1]]): item for item in items}


@pytest.mark.parametrize("length", [1, 2, 4, 16])
@pytest.mark.parametrize(("stack", "n_step"), [(1, 1), (3, 2), (4, 5)])
def test_every_item_equals_that_of_a_naive_walk_over_the_episodes(length: int, stack: int, n_step: int) -> None:
    spec = make_spec(length, stack, n_step)
    ends = {3: "terminated", 4: "truncated", 5: "terminated", 13: "truncated", 30: "terminated"}
    steps = 50
    items = all_items(spec, stream_chunks(spec, ends, steps))
    assert len(items) == steps
    # Each episode as a list of positions, then how it ended; the last one was drained.
    episodes: list[tuple[list[float], str]] = [([], "drained")]
    position = 0.0
    for step in range(steps):
        episodes[-1][0].append(position)
        position += 1
        if step in ends:
            if ends[step] == "truncated":
                episodes[-1][0].append(position)
                position += 1
            episodes[-1] = (episodes[-1][0], ends[step])
            episodes.append(([], "drained"))
    episodes[-1][0].append(position)
    for positions, end in episodes:
        last = len(positions) - (end != "terminated")  # the extra row of a truncated or drained one is no item
        for t in range(last):
            item = items[positions[t]]
            m = min(n_step, last - t)
            rows = item["observation/position"]
            assert item["steps"] == m
            assert item["reward"][:m].tolist() == [10 * positions[t + k] for k in range(m)]
            assert item["action"] == positions[t] % 4
            assert item["terminated"] == (end == "terminated" and t + m == last)
            assert rows[item["observation_index"]].tolist() == [positions[max(t - back, 0)] for back in range(stack - 1, -1, -1)]
            if not item["terminated"]:
                following = [positions[max(t + m - back, 0)] for back in range(stack - 1, -1, -1)]
                assert rows[item["next_index"]].tolist() == following


def test_steps_to_boundary_stops_at_termination_and_before_a_row_without_action() -> None:
    terminated = np.array([0, 0, 1, 0, 0, 0, 0, 0], np.uint8)
    valid = np.array([1, 1, 1, 1, 1, 0, 1, 1], np.uint8)
    assert steps_to_boundary(terminated, valid, 5, 3).tolist() == [3, 2, 1, 2, 1]


def test_invariants_hold_while_chunks_of_all_lengths_turn_the_ring_over() -> None:
    spec = make_spec(length=4)
    table = Ring(spec, ReplayConfig(capacity=40, budget_bytes=10**9, min_size=1), seed=0)
    chunks = [chunk for steps in (3, 9, 1, 30, 17, 80) for chunk in stream_chunks(spec, {2: "truncated", 7: "terminated"}, steps)]
    generator = np.random.default_rng(0)
    keys: set[int] = set()
    for chunk in chunks:
        table.insert(chunk)
        table.check_invariants()
        batch = draw(table, 6)
        taken = table.update_priorities(batch["key"], generator.random(6))
        assert taken == 6
        keys |= set(batch["key"].tolist())
        table.check_invariants()
    assert table.size <= 40 < table.inserted_items
    assert table.update_priorities(np.array([min(keys)]), np.ones(1)) == 0, "an evicted key must be ignored"


@pytest.mark.parametrize(("stack", "n_step"), [(1, 1), (3, 2)])
@pytest.mark.parametrize(("shortest", "longest"), [(1, 1), (3, 3), (5, 5), (1, 8)], ids=["1", "3", "just-over-half", "any"])
def test_capacity_counts_items_however_short_the_chunks_of_slow_simulators_are(
    shortest: int, longest: int, stack: int, n_step: int
) -> None:
    spec = make_spec(length=8, stack=stack, n_step=n_step)
    table = Ring(spec, ReplayConfig(capacity=64, budget_bytes=10**9, min_size=50), seed=0)
    generator = np.random.default_rng(shortest + longest)
    oracle: deque[tuple[int, Chunk]] = deque()  # the newest chunks with at most 64 items
    for key in range(100):
        length = int(generator.integers(shortest, longest, endpoint=True))
        chunk = stream_chunks(spec, {}, length)[0]
        chunk.columns["position"] += 100 * key
        table.insert(chunk)
        oracle.append((key, chunk))
        while sum(kept.length for _, kept in oracle) > 64:
            oracle.popleft()
        table.check_invariants()
        items = every_item(table)
        assert items["key"].tolist() == [key * 8 + offset for key, kept in oracle for offset in range(kept.length)]
        expected = [100 * key + offset for key, kept in oracle for offset in range(kept.length)]
        windows, newest = items["observation/position"], items["observation_index"][:, -1]
        assert windows[np.arange(len(windows)), newest].tolist() == expected
    assert table.limiter.min_size == 50 and table.size > 64 - longest


def test_a_table_grows_to_its_capacity_again_after_its_simulators_have_become_slow_or_fast() -> None:
    spec = make_spec(length=8, n_step=3)
    table = Ring(spec, ReplayConfig(capacity=640, budget_bytes=10**9, min_size=600), seed=0)
    for length in (8, 1, 8, 2, 8):
        (chunk,) = stream_chunks(spec, {}, length)
        for _ in range(1_500 // length):
            table.insert(chunk)
            assert table.inserted_items < 640 or table.size > 632
        table.check_invariants()


def test_memory_for_full_chunks_is_used_again_before_more_is_touched() -> None:
    spec = make_spec(length=8, n_step=3)
    table = Ring(spec, ReplayConfig(capacity=64, budget_bytes=10**9, min_size=1), seed=0)
    (chunk,) = stream_chunks(spec, {}, 8)
    for _ in range(100):
        table.insert(chunk)
    assert {kept.slot for kept in table._chunks} <= set(range(9)) and table.used_bytes == 8 * table.slot_bytes


def test_a_full_table_is_drawn_from_although_memory_keeps_it_below_min_size(capsys: pytest.CaptureFixture[str]) -> None:
    spec = make_spec(length=8, n_step=3)
    config = ReplayConfig(capacity=64, budget_bytes=10**9, min_size=60, samples_per_insert_low=1.0, samples_per_insert_high=2.0)
    least = 9 * slot_bytes(spec) + overhead_bytes(spec, config, 0)  # full chunks would fill the capacity
    table = Ring(spec, msgspec.structs.replace(config, budget_bytes=least), seed=0)
    (chunk,) = stream_chunks(spec, {}, 1)
    table.limiter.lease(6)
    while not table.full:
        assert not table.can_sample() and table.can_insert()
        table.insert(chunk)
    held = table.size
    assert held < 60
    for _ in range(100):
        moved = table.can_insert()
        if moved:
            table.insert(chunk)
        if table.can_sample():
            draw(table, 6)
            moved = True
        assert moved, "both sides wait"
    assert 1.0 <= table.sampled_items / (table.inserted_items - held) <= 2.2
    (said,) = capsys.readouterr().out.splitlines()
    assert said.startswith(f"full with {held} items, below replay.min_size 60: training starts")
    assert "--replay.budget-bytes" in said


def test_invalid_priorities_and_unknown_keys_are_ignored() -> None:
    spec = make_spec(length=4)
    table = Ring(spec, CONFIG, seed=0)
    for chunk in stream_chunks(spec, {1: "truncated"}, 6):
        table.insert(chunk)
    key = int(draw(table, 1)["key"][0])
    invalid_row = 2  # the truncated episode's last observation: a key that exists but is no item
    keys = np.array([key, key, key, -1, 10**12, invalid_row])
    assert table.update_priorities(keys, np.array([np.nan, np.inf, -1.0, 1.0, 1.0, 1.0])) == 0
    table.check_invariants()
    assert {int(position) for position in draw(table, 500)["key"]}.isdisjoint({invalid_row})


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("action", 4, "an action outside 0 to 3"),
        ("action", -1, "an action outside 0 to 3"),
        ("reward", np.nan, "reward is not finite"),
        ("reward", 2e9, "a reward beyond 1e.09"),
        ("reward", -2e9, "a reward beyond 1e.09"),
        ("episode_step", -1, "a negative episode_step"),
        ("position", np.inf, "position is not finite"),
        ("position", 2e9, "position has a value beyond 1e.09"),
        ("position", -2e9, "position has a value beyond 1e.09"),
    ],
)
def test_a_chunk_with_a_value_that_cannot_be_or_is_beyond_its_limit_is_rejected(column: str, value: float, reason: str) -> None:
    spec = make_spec(length=4)
    for row in range(5) if column == "position" else [3]:  # every row of an observation counts
        chunk = stream_chunks(spec, {}, 4)[0]
        chunk.columns[column][row] = value
        with pytest.raises(RejectedChunk, match=reason):
            check_chunk(spec, chunk)


def leaf_values(spec: ExperienceSpec, *chunks: Chunk, exponent: float = 0.5, selector: str = "prioritised") -> list[list[float]]:
    """What the selector holds of each chunk's items."""
    config = msgspec.structs.replace(CONFIG, priority_exponent=exponent, selector=selector)
    table = Ring(spec, config, seed=0)
    for chunk in chunks:
        table.insert(chunk)
        table.check_invariants()
    values = table.state().selector.values.reshape(-1, spec.chunk_length)
    return [list(row) for row in values[: len(chunks)]]


def test_items_start_with_the_sent_priorities_raised_to_the_exponent() -> None:
    spec = make_spec(length=4, extras=scalars(PRIORITY))
    chunks = stream_chunks(spec, {2: "truncated", 6: "terminated"}, 9)
    for chunk, values in zip(chunks, leaf_values(spec, *chunks), strict=True):
        drawable = chunk.columns["valid"][spec.history : spec.history + chunk.length] != 0
        position = chunk.columns["position"][spec.history : spec.history + chunk.length]
        expected = np.where(drawable, np.sqrt(position + 1.0), 0.0)
        assert values[: chunk.length] == pytest.approx(expected) and not any(values[chunk.length :])
    assert all(set(values) <= {0.0, 1.0} for values in leaf_values(spec, *chunks, selector="uniform"))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0])
def test_an_invalid_priority_counts_as_unknown_and_becomes_the_highest_so_far(value: float) -> None:
    spec = make_spec(length=4, extras=scalars(PRIORITY))
    chunks = stream_chunks(spec, {5: "truncated"}, 7)
    chunks[1].columns[PRIORITY][:] = value  # every row, those around the items and the one without action included
    first, second = leaf_values(spec, *chunks[:2])
    assert first == pytest.approx(np.sqrt([1.0, 2.0, 3.0, 4.0]))
    assert second == pytest.approx([2.0, 2.0, 0.0, 2.0])


def test_the_largest_float_as_a_priority_leaves_all_sums_finite() -> None:
    spec = make_spec(length=4, extras=scalars(PRIORITY))
    chunks = stream_chunks(spec, {}, 8)
    for chunk, value in zip(chunks, (np.finfo(np.float32).max, 0.0), strict=False):
        chunk.columns[PRIORITY][:] = value
    first, second = leaf_values(spec, *chunks[:2], exponent=1.0)
    assert np.isfinite(first).all() and min(second) > 0


@pytest.mark.parametrize("name", ["hindsight_goal", "hindsight_reward"])
def test_hindsight_that_is_not_finite_is_rejected(name: str) -> None:
    goals = (observed("achieved_goal", (2,), "<f4"), observed("desired_goal", (2,), "<f4"))
    spec = join(ExperienceSpec(goals, Continuous((-1.0,), (1.0,)), 4), Needs(goals=2))
    columns = {column.name: np.zeros((spec.rows(4), *column.shape), column.dtype) for column in spec.columns}
    check_chunk(spec, Chunk(0, 4, columns))
    columns[name][3, 1] = np.nan
    with pytest.raises(RejectedChunk, match=name):
        check_chunk(spec, Chunk(0, 4, columns))


def test_an_initial_priority_takes_no_memory() -> None:
    plain, sending = make_spec(length=64), make_spec(length=64, extras=scalars(PRIORITY))
    assert Ring(plain, CONFIG, seed=0).slot_bytes == Ring(sending, CONFIG, seed=0).slot_bytes
    assert sending.chunk_bytes > plain.chunk_bytes
    assert layout(plain, 8) == layout(sending, 8)


def test_the_byte_budget_limits_what_the_item_capacity_would_allow() -> None:
    spec = make_spec(length=64)
    wide = Ring(spec, ReplayConfig(capacity=100_000, budget_bytes=10**9, min_size=1), seed=0)
    small = ReplayConfig(capacity=100_000, budget_bytes=122_000_000, receive_bytes=1_000_000, min_size=1)
    tight = Ring(spec, small, seed=0)
    assert wide.capacity == 100_000 // 64 * 64
    assert 0 < tight.capacity < wide.capacity and tight.capacity_bytes + overhead_bytes(spec, small, 0) <= 122_000_000
    assert Ring(spec, small, seed=0, leased=2_000).capacity < tight.capacity, "the learner's slots are replay's memory, too"
    with pytest.raises(ValueError, match="min_size"):
        Ring(spec, msgspec.structs.replace(small, min_size=90_000), seed=0)
    with pytest.raises(ValueError, match="receive_bytes"):
        Ring(spec, msgspec.structs.replace(small, receive_bytes=2_000_000), seed=0)


def test_a_million_frames_fit_in_the_promised_memory() -> None:
    frame = observed("observation", (84, 84), "|u1", 1 / 255, codec="lz4")
    spec = ExperienceSpec((frame,), Categorical(7), chunk_length=128, stack=4, n_step=3)
    assert Ring(spec, ReplayConfig(capacity=128, min_size=1), seed=0).slot_bytes * 1_000_000 / 128 <= 7.8e9
