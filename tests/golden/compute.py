"""Computes the arrays of every case."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from tests.golden import adapters, cases
from tests.golden.cases import Arrays, Case, World
from tests.golden.figures import Figures, figure

FIRST, TOTAL = 2, 12  # place among the run's environments


def chunks_by_chance(case: Case, seed: int) -> list[Any]:
    """Chunks of random actions."""
    random = np.random.default_rng(seed)
    act = lambda stacked: (cases.draw_actions(case, random), adapters.extra_columns(case, random))  # noqa: E731
    return adapters.play(case, World(case, seed + 1), act, by_policy=False)


def joined(parts: list[Arrays]) -> Arrays:
    """Arrays end to end, by name."""
    return {name: np.concatenate([np.atleast_1d(part[name]) for part in parts]) for name in parts[0]}


def batches(case: Case, seed: int) -> list[Arrays]:
    """Batches of a full ring, priorities changed between draws."""
    replay = adapters.Replay(case, capacity=12 * case.chunk_length, seed=seed)
    random, drawn = np.random.default_rng(seed), []
    chunks = chunks_by_chance(case, seed)
    for number, chunk in enumerate(chunks):
        replay.insert(chunk)
        if number >= len(chunks) - case.updates:
            drawn.append(replay.draw(case.items))
            replay.update_priorities(drawn[-1]["key"], random.random(case.items) * 3)
    return drawn


def replay(case: Case) -> Arrays:
    columns = joined([adapters.columns_of(case, chunk) for chunk in chunks_by_chance(case, 11)])
    drawn = joined(batches(case, 11))
    return {f"chunk/{name}": values for name, values in columns.items()} | {
        f"batch/{name}": values for name, values in drawn.items()
    }


def rollouts(case: Case) -> Arrays:
    drawn = adapters.draw_rollouts(case, chunks_by_chance(case, 12), 3, 4)
    return joined([adapters.rollout_figures(case, batch) for batch in drawn])


def begins(case: Case) -> Arrays:
    """The weights that a seed gives."""
    return adapters.Learning(case, seed=3).weights()


def learns(case: Case) -> Arrays:
    """Weights after some updates from given ones; losses and priorities on the way."""
    learning = adapters.Learning(case, seed=3)
    learning.assign(cases.weights)
    torch.manual_seed(4)
    if case.algorithm == "ppo":
        given = adapters.draw_rollouts(case, chunks_by_chance(case, 13), case.updates, case.items)
    else:
        given = batches(case, 13)[: case.updates]
    during = joined([learning.learn(batch) for batch in given])
    return learning.weights() | {f"during/{name}": values for name, values in during.items()}


def acts(case: Case) -> Arrays:
    """Actions of each mode, and the chunks that leave."""
    found: Arrays = {}
    for mode in cases.MODES:
        acting = adapters.Acting(case, 7, FIRST, TOTAL, cases.weights)
        actions: list[np.ndarray] = []

        def act(
            stacked: Arrays, acting: adapters.Acting = acting, mode: str = mode, actions: list[np.ndarray] = actions
        ) -> adapters.Acted:
            acted = acting.act(stacked, mode)
            actions.append(acted[0].copy())
            return acted

        chunks = adapters.play(case, World(case, 8), act, by_policy=True)
        columns = joined([adapters.columns_of(case, chunk) for chunk in chunks])
        kept = {name: values for name, values in columns.items() if name not in {field.name for field in case.fields}}
        found[f"{mode}/actions"] = np.stack(actions)
        found |= {f"{mode}/{name}": values for name, values in kept.items()}
    return found


CASES: dict[str, Callable[[], Arrays]] = {
    **{f"replay {name}": partial(replay, case) for name, case in cases.REPLAY.items()},
    **{f"rollouts {name}": partial(rollouts, case) for name, case in cases.ROLLOUTS.items()},
    **{f"begins {name}": partial(begins, case) for name, case in cases.LEARNING.items()},
    **{f"learns {name}": partial(learns, case) for name, case in cases.LEARNING.items()},
    **{f"acts {name}": partial(acts, case) for name, case in cases.ACTING.items()},
}


def figures_of(name: str) -> Figures:
    """One case's arrays as figures, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return {array: figure(values) for array, values in CASES[name]().items()}
    finally:
        torch.set_num_threads(threads)
