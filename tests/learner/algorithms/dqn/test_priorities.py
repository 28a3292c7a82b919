"""Initial priorities against a walk of each stream, row by row."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from learner.algorithms.dqn.acting import BEST_VALUE, TAKEN_VALUE, UNKNOWN, initial_priority
from learner.algorithms.dqn.config import DqnConfig
from tests.actors.streams import Rows, Streams, make_spec
from tests.transport.columns import scalars
from transport.experience import ExperienceSpec

GAMMA, SCALE = 0.9, 0.25


def walk(rows: Rows, start: int, n_step: int) -> float:
    """|n-step TD error| of one row of a stream, UNKNOWN for a row without action."""
    row: dict[str, Any] = rows[start]
    if not row["valid"]:
        return UNKNOWN
    total = 0.0
    for k in range(n_step):
        total += GAMMA**k * SCALE * float(rows[start + k]["reward"])
        if rows[start + k]["terminated"]:
            return abs(total - float(row[TAKEN_VALUE]))
        if not rows[start + k + 1]["valid"]:  # truncated, or the end of the stream: a row without action
            return UNKNOWN
    return abs(total + GAMMA**n_step * float(rows[start + n_step][BEST_VALUE]) - float(row[TAKEN_VALUE]))


def check(streams: Streams) -> np.ndarray:
    """Compares all items of all chunks; returns their priorities."""
    spec, seen = streams.spec, []
    config = DqnConfig(gamma=GAMMA, reward_scale=SCALE)
    for rows, chunks in zip(streams.expected, streams.chunks, strict=True):
        first = 0
        for chunk in chunks:
            priority = initial_priority(spec, chunk.columns, config)
            assert priority.dtype == np.float32 and priority.shape == chunk.columns["reward"].shape
            items = priority[spec.history : spec.history + chunk.length]
            expected = [walk(rows, first + place, spec.n_step) for place in range(chunk.length)]
            assert items.tolist() == pytest.approx(expected, abs=1e-5)
            around = np.delete(priority, np.arange(spec.history, spec.history + chunk.length))
            assert (around == UNKNOWN).all()
            first += chunk.length
            seen.append(items)
    return np.concatenate(seen)


def knowing(length: int, stack: int, n_step: int) -> ExperienceSpec:
    return make_spec(length, stack, n_step, extras=scalars(TAKEN_VALUE, BEST_VALUE))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize(
    ("length", "stack", "n_step"), [(1, 1, 1), (1, 4, 3), (2, 1, 5), (4, 3, 2), (8, 4, 3), (8, 1, 1), (16, 2, 8)]
)
def test_priorities_equal_a_walk_of_the_stream_over_the_borders_of_chunks_and_episodes(
    count: int, length: int, stack: int, n_step: int
) -> None:
    streams = Streams(knowing(length, stack, n_step), count, seed=length + stack + n_step)
    for _ in range(100):
        streams.step()
    streams.drain()
    priorities = check(streams)
    assert (priorities >= 0).any() and (priorities == UNKNOWN).any()


def test_chunks_that_left_short_or_late_have_the_same_priorities() -> None:
    streams = Streams(knowing(8, 4, 3), 3, seconds=5.0)
    for _ in range(120):
        streams.clock.now += float(streams.random.choice([0.0, 0.1, 3.0]))
        streams.step()
    assert len({chunk.length for chunks in streams.chunks for chunk in chunks}) > 3
    streams.drain()
    check(streams)


def test_only_what_bootstraps_from_an_observation_without_action_is_unknown() -> None:
    streams = Streams(knowing(length=16, stack=1, n_step=3), 1)
    never, now = np.array([False]), np.array([True])
    for step in range(12):
        streams.step(now if step == 9 else never, now if step == 4 else never)
    streams.drain()
    # Steps 0 to 4, the row of the last observation, steps 5 to 9 up to a termination, then two that the end of the stream cuts.
    unknown = (check(streams) == UNKNOWN).tolist()
    assert unknown == [False, False, True, True, True, True, False, False, False, False, False, True, True]


def test_rewards_count_as_clipped_as_they_are_learned_from() -> None:
    streams = Streams(knowing(8, 1, 3), 1)
    for _ in range(60):
        streams.step()
    columns = streams.chunks[0][0].columns
    some = columns["reward"] > 0.5
    large, clipped = (columns | {"reward": np.where(some, value, columns["reward"])} for value in (7.0, 1.0))
    expected = initial_priority(streams.spec, clipped, DqnConfig())
    np.testing.assert_array_equal(initial_priority(streams.spec, large, DqnConfig(clip_rewards=True)), expected)
    assert not np.array_equal(initial_priority(streams.spec, large, DqnConfig()), expected)


def test_chunks_of_one_length_may_be_valued_together() -> None:
    streams = Streams(knowing(8, 3, 3), 4)
    for _ in range(60):
        streams.step()
    chunks = [chunk for chunks in streams.chunks for chunk in chunks]
    together = {name: np.stack([chunk.columns[name] for chunk in chunks]) for name in chunks[0].columns}
    expected = [initial_priority(streams.spec, chunk.columns, DqnConfig()) for chunk in chunks]
    np.testing.assert_array_equal(initial_priority(streams.spec, together, DqnConfig()), np.stack(expected))


def test_q_values_that_are_not_finite_give_no_priority() -> None:
    streams = Streams(knowing(4, 1, 1), 1)
    for _ in range(6):
        streams.step(np.array([False]), np.array([False]))
    columns = streams.chunks[0][0].columns
    for bad in (np.nan, np.inf):
        broken = columns | {TAKEN_VALUE: np.where(np.arange(5) == 1, np.float32(bad), columns[TAKEN_VALUE])}
        priority = initial_priority(streams.spec, broken, DqnConfig())
        assert np.isfinite(priority).all() and (priority == UNKNOWN).tolist() == [False, True, False, False, True]
