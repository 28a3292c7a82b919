"""Rows of whole chunks in order of time, against what replay and the actor make of the same rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.sequences import n_step_returns, unrolled_rows
from learner.algorithms.base import ActionBatch
from learner.algorithms.columns import STATES, memory_columns
from learner.feed.batches import to_chunks
from learner.networks.recurrent import Gru, Lstm
from replay.table.storage import steps_to_boundary
from tests.learner.examples import CPU, vector
from tests.learner.rollouts import play, to_arrays
from transport.experience import Categorical, Columns, ExperienceSpec


@pytest.mark.parametrize("n", [1, 3])
def test_n_step_returns_end_where_replays_do(n: int) -> None:
    random = np.random.default_rng(0)
    terminated, valid = random.random((40, 6)) < 0.15, random.random((40, 6)) < 0.85
    terminated &= valid
    reward = random.standard_normal((40, 6)).astype(np.float32)
    reward[~valid] = np.nan  # means nothing
    rows = [torch.from_numpy(column) for column in (reward, terminated, valid)]
    found = n_step_returns(rows[0], rows[1], rows[2], n, 0.9)
    length = 40 - n
    for b in range(6):
        steps = steps_to_boundary(terminated[:, b], valid[:, b], length, n)
        for t in np.flatnonzero(valid[:length, b]):
            m = int(steps[t])
            assert found.steps[t, b] == m
            assert float(found.return_[t, b]) == pytest.approx(sum(0.9**k * reward[t + k, b] for k in range(m)), abs=1e-5)
            assert float(found.discount[t, b]) == pytest.approx(0.0 if terminated[t + m - 1, b] else 0.9**m)


@pytest.mark.parametrize("stack", [1, 3])
def test_rows_are_stacked_as_the_actor_saw_them_and_say_where_episodes_begin(stack: int) -> None:
    spec = ExperienceSpec((vector(size=2),), Categorical(2), 8, stack, n_step=2, burn_in=3, unit="sequences")
    streams = 3
    seen: list[Columns] = []

    def act(stacked: Columns) -> ActionBatch:
        seen.append(stacked)
        return ActionBatch(np.zeros(streams, np.int64), {}, {})

    chunks, _ = play(spec, act, streams, steps=50, seed=1)
    batch = to_chunks(to_arrays(spec, chunks, harsh=False), spec, CPU)
    rows = unrolled_rows(batch, spec)
    assert rows.first.shape == (3 + 8 + 2, len(chunks))
    acted = batch.valid[:, stack - 1 :].T
    found = rows.observation["vector"][acted].numpy()  # [rows acted on, stack, 2]; some are in two chunks
    expected = {row.tobytes() for stacked in seen for row in stacked["vector"]}
    assert {row.tobytes() for row in found} == expected
    repeated = (found == found[:, :1]).all((1, 2))
    assert (repeated == rows.first[acted].numpy()).all() if stack > 1 else True
    assert rows.first[acted].any() and not rows.first[acted].all()


@pytest.mark.parametrize(("name", "kind"), [("lstm", Lstm), ("gru", Gru)])
def test_a_memorys_columns_are_its_state(name: str, kind: type[Lstm] | type[Gru]) -> None:
    columns = memory_columns(name, 5)
    assert {column.name: column.shape for column in columns} == kind(3, 5).state
    assert all(column.once for column in columns) and set(STATES) == {"lstm", "gru"}
