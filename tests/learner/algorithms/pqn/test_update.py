"""PQN on rollouts that the actors' own chunker cut, against loops over them in plain Python, and against torch alone."""

from __future__ import annotations

import copy
import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.base import join
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.config import LearnerConfig
from tests.learner.examples import LEARNER, image, make_update, vector
from tests.learner.rollouts import observe, rolled
from transport.experience import ACTION_MASK, Categorical, Chunk, Column, ExperienceSpec, observed

THREE = Categorical(3)
QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)


def make(*fields: Column, action: Categorical = THREE, stack: int = 1) -> ExperienceSpec:
    env = ExperienceSpec(fields, action, 8, stack)
    return join(env, Pqn(PqnConfig()).needs(env))


SPECS = {
    "vector": make(vector()),
    "stacked vectors": make(vector(), QUANTISED, stack=3),
    "masked": make(vector(), observed(ACTION_MASK, (3,), "|u1"), action=Categorical(3, masked=True), stack=2),
    "image": make(image(shape=(12, 12)), stack=4),
    "image and vector": make(image(shape=(2, 13, 11)), vector(), stack=2),
}


def made(spec: ExperienceSpec, seed: int = 1, learner: LearnerConfig = LEARNER, **options: Any) -> Any:
    """Its statistics are away from none."""
    torch.manual_seed(seed)
    update = make_update(spec, msgspec.convert({"hidden": 16, "gamma": 0.9, "q_lambda": 0.7} | options, PqnConfig), learner)
    rows = {name: torch.from_numpy(column) for name, column in observe(spec, 50, np.random.default_rng(5)).items()}
    update.policy.body.inputs.observe(rows, torch.ones(50, dtype=torch.bool))
    return update


def best_value(update: Any, chunk: Chunk, row: int) -> float:
    """The best Q-value of an allowed action in a row, stacked by looking back until the episode begins."""
    columns, stack = chunk.columns, update.spec.stack
    places = [row]
    while len(places) < stack:
        places.insert(0, places[0] - 1 if columns["episode_step"][places[0]] > 0 else places[0])
    stacked = {field.name: torch.from_numpy(columns[field.name][places][None]) for field in update.spec.fields}
    with torch.no_grad():
        q = update.policy(stacked)[0].tolist()
    allowed = columns[ACTION_MASK][row].tolist() if ACTION_MASK in columns else [1] * len(q)
    return max(value for value, may in zip(q, allowed, strict=True) if may or not any(allowed))


def expected_targets(update: Any, chunk: Chunk) -> list[float]:
    """The lambda return of each item as the weighted mean of its n-step returns: (1 - lambda) lambda^(n-1) for each n, and what
    is left of the weights for the longest, which ends with the episode or the chunk. Every item is summed up anew."""
    columns, history, config = chunk.columns, update.spec.history, update.config
    rows = range(history, history + chunk.length)
    best = {row + 1: best_value(update, chunk, row + 1) for row in rows}
    found = []
    for first in rows:
        if not columns["valid"][first]:
            continue
        n_step_returns, rewards = [], 0.0
        for row in range(first, rows.stop):
            k = row - first
            rewards += config.gamma**k * config.reward_scale * float(columns["reward"][row])
            terminated, truncated = bool(columns["terminated"][row]), bool(columns["truncated"][row])
            following = 0.0 if terminated else best[row + 1]
            n_step_returns.append(rewards + config.gamma ** (k + 1) * following)
            if terminated or truncated or not columns["valid"][row + 1]:
                break
        weights = [(1 - config.q_lambda) * config.q_lambda**k for k in range(len(n_step_returns) - 1)]
        weights.append(1 - sum(weights))
        found.append(sum(weight * value for weight, value in zip(weights, n_step_returns, strict=True)))
    return found


@pytest.mark.parametrize("q_lambda", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("name", SPECS)
def test_targets_equal_weighted_n_step_returns_whatever_ends_an_episode(name: str, q_lambda: float) -> None:
    update = made(SPECS[name], q_lambda=q_lambda, reward_scale=2.0)
    rollout, chunks, _ = rolled(update)
    ends = {kind for chunk in chunks for kind in ("terminated", "truncated") if chunk.columns[kind].any()}
    assert ends == {"terminated", "truncated"} and min(chunk.length for chunk in chunks) < 8, "the rollout has no such case"
    items, _ = update.prepare(rollout)
    expected = [target for chunk in chunks for target in expected_targets(update, chunk)]
    assert len(expected) == len(items.action) == 3 * 37, "each step is an item once"
    np.testing.assert_allclose(items.target, expected, atol=2e-5)


def test_an_episode_that_terminates_in_a_chunks_last_row_is_not_bootstrapped_and_one_that_goes_on_is() -> None:
    update = made(SPECS["vector"], q_lambda=0.5)
    rollout, chunks, _ = rolled(update)
    last = [chunk.columns["valid"][chunk.length - 1] and not chunk.columns["truncated"][chunk.length - 1] for chunk in chunks]
    assert any(last)
    place = last.index(True)
    length, items = chunks[place].length, rollout.valid[place, : chunks[place].length]
    offset = sum(int(chunk.columns["valid"][: chunk.length].sum()) for chunk in chunks[:place]) + int(items.sum()) - 1
    reward = float(rollout.reward[place, length - 1])
    for terminated in (True, False):
        flags = rollout.terminated.clone()
        flags[place, length - 1] = terminated
        target = float(update.prepare(rollout._replace(terminated=flags))[0].target[offset])
        after = 0.0 if terminated else 0.9 * best_value(update, chunks[place], length)
        assert target == pytest.approx(reward + after, abs=1e-5)


@pytest.mark.parametrize("name", SPECS)
def test_one_update_is_that_of_torch_alone(name: str) -> None:
    """A pass of one minibatch: half the mean squared error of the action taken, the gradient cut, a step of Adam."""
    learner = LearnerConfig(learning_rate=1e-2, adam_epsilon=1e-5, max_grad_norm=0.5)
    update = made(SPECS[name], learner=learner, n_epochs=1, minibatches=1)
    other = copy.deepcopy(update.policy)
    rollout, chunks, seen = rolled(update)
    targets = torch.tensor([target for chunk in chunks for target in expected_targets(update, chunk)])
    metrics = update.update(rollout).metrics

    step = dict.fromkeys(range(3), 0)
    q = []
    for chunk in chunks:
        for row in range(update.spec.history, update.spec.history + chunk.length):
            if chunk.columns["valid"][row]:
                stacked = seen[step[chunk.stream]]
                observation = {field: torch.from_numpy(stacked[field][chunk.stream][None]) for field in stacked}
                q.append(other(observation)[0, int(chunk.columns["action"][row])])
                step[chunk.stream] += 1
    taken = torch.stack(q)
    loss = (taken - targets).square().sum() / (2 * len(q))
    adam = torch.optim.Adam(other.parameters(), lr=1e-2, eps=1e-5)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
    adam.step()
    assert float(norm) > 0.5, "the gradient is cut"
    assert float(metrics["loss"]) == pytest.approx(float(loss.detach()), rel=1e-4)
    assert float(metrics["td"]) == pytest.approx(float((taken - targets).abs().mean().detach()), rel=1e-4)
    assert float(metrics["q"]) == pytest.approx(float(taken.mean().detach()), rel=1e-3, abs=1e-4)
    for found, expected in zip(update.policy.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)


def test_an_item_without_a_finite_target_teaches_nothing_and_is_counted() -> None:
    update = made(SPECS["vector"], q_lambda=0.0)
    rollout, _, _ = rolled(update)
    items, rows = update.prepare(rollout)
    broken = items._replace(target=items.target.clone().index_fill_(0, torch.tensor([3]), math.inf))
    loss = update.loss(broken, rows)
    assert float(loss.metrics["ignored"]) == pytest.approx(1 / len(items.action), rel=1e-3)
    gradient = torch.autograd.grad(loss.value, list(update.policy.parameters()))
    assert all(bool(value.isfinite().all()) for value in gradient)
    assert float(update.loss(items, rows).metrics["ignored"]) == 0


def test_mixed_precision_learns_nearly_the_same() -> None:
    targets = []
    for precision in ("float32", "bfloat16"):
        learner = LearnerConfig(precision=precision)  # type: ignore[arg-type]
        update = made(SPECS["image and vector"], learner=learner)
        with update.optimiser.autocast():
            targets.append(update.prepare(rolled(update)[0])[0].target)
        assert bool(update.update(rolled(update)[0]).metrics["loss"].isfinite())
    exact, mixed = targets
    assert mixed.dtype == torch.float32 and not torch.equal(exact, mixed)
    np.testing.assert_allclose(mixed, exact, atol=0.1)
