"""Munchausen's target against the formula of its paper, in plain Python."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.transitions import transition
from learner.algorithms.dqn.arrays import soft_value
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.config import LearnerConfig
from tests.learner.examples import make_batch, make_spec, make_update, vector
from transport.experience import ACTION_MASK, Categorical, ExperienceSpec, observed

N, TEMPERATURE = 3, 0.5
PLAIN = make_spec(vector(), n=N, stack=2, n_step=3)
MASKED = ExperienceSpec((vector(), observed(ACTION_MASK, (N,), "|u1")), Categorical(N, masked=True), 16, 2, 3)


def log_policy(values: list[float], allowed: list[bool]) -> list[float]:
    """log softmax(values / temperature) of the allowed actions."""
    total = math.log(sum(math.exp(value / TEMPERATURE) for value, may in zip(values, allowed, strict=True) if may))
    return [value / TEMPERATURE - total if may else -math.inf for value, may in zip(values, allowed, strict=True)]


@pytest.mark.parametrize("spec", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("alpha", [0.3, 0.9])
def test_the_target_is_that_of_the_paper(spec: ExperienceSpec, alpha: float) -> None:
    torch.manual_seed(0)
    config = DqnConfig(hidden=16, gamma=0.9, munchausen=alpha, entropy_temperature=TEMPERATURE)
    dqn = make_update(spec, config)
    with torch.no_grad():
        for parameter in dqn.target.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    batch = make_batch(spec, 40)
    if spec is MASKED:
        batch.observation[ACTION_MASK] = (torch.rand(40, 5, N) < 0.6).to(torch.uint8)
        batch.observation[ACTION_MASK][:, :, 1] = 1
        batch.action.fill_(1)
    priorities = dqn.loss(Weighted(batch, torch.ones(40))).priority
    step = transition(batch, 0.9)
    with torch.no_grad():
        q, now, later = dqn.policy(step.observation), dqn.target(step.observation), dqn.target(step.next_observation)
    clipped = 0
    for item in range(40):
        allowed = [[True] * N] * 2
        if spec is MASKED:
            allowed = [seen[ACTION_MASK][item, -1].bool().tolist() for seen in (step.observation, step.next_observation)]
        action = int(batch.action[item])
        bonus = TEMPERATURE * log_policy(now[item].tolist(), allowed[0])[action]
        clipped += bonus < -1
        goal = float(step.return_[item]) + alpha * min(max(bonus, -1.0), 0.0)
        for value, log in zip(later[item].tolist(), log_policy(later[item].tolist(), allowed[1]), strict=True):
            if log > -math.inf:
                goal += float(step.discount[item]) * math.exp(log) * (value - TEMPERATURE * log)
        assert float(priorities[item]) == pytest.approx(abs(goal - float(q[item, action])), abs=1e-4)
    assert 0 < clipped < 40, "the bound makes a difference"


def test_with_a_low_temperature_next_values_are_those_of_the_best_action() -> None:
    values = np.random.default_rng(0).normal(0, 100, (50, 4)).astype(np.float32)
    np.testing.assert_allclose(soft_value(values, 1e-3), values.max(1), rtol=1e-5, atol=2e-3)


def test_where_rewards_are_normalised_the_temperature_is_in_units_of_their_scale() -> None:
    """So that rewards of any size teach the same."""
    gains = []
    for size in (1e3, 1e6):
        torch.manual_seed(0)
        config = DqnConfig(hidden=16, normalize_reward=True, munchausen=0.9, target_update_interval=20)
        dqn = make_update(make_spec(vector(), n_step=2), config, LearnerConfig(batch_size=64, learning_rate=1e-3))
        batches = [make_batch(dqn.spec, 64) for _ in range(100)]
        for batch in batches:
            dqn.update(batch._replace(reward=size * (batch.reward + 1)))
        with torch.no_grad():
            gains.append(dqn.policy(transition(batches[0], 0.9).observation) / size)
    assert float(gains[0].mean()) > 0.5, "it has learned nothing"
    torch.testing.assert_close(*gains, rtol=1e-2, atol=1e-2)
