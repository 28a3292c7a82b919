"""Conservative Q-learning's loss against the formula of its paper, in plain Python."""

from __future__ import annotations

import math

import pytest
import torch

from learner.algorithms.arithmetic.transitions import transition
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from tests.learner.algorithms.dqn.test_munchausen import MASKED, PLAIN, N
from tests.learner.examples import make_batch, make_update
from transport.experience import ACTION_MASK, ExperienceSpec


@pytest.mark.parametrize("spec", [PLAIN, MASKED], ids=["plain", "masked"])
@pytest.mark.parametrize("scale", [1.0, 5.0])
def test_the_loss_is_that_of_the_paper_beside_the_other(spec: ExperienceSpec, scale: float) -> None:
    batch, weight = make_batch(spec, 20), torch.rand(20)
    if spec is MASKED:
        batch.observation[ACTION_MASK] = (torch.rand(20, 5, N) < 0.6).to(torch.uint8)
        batch.observation[ACTION_MASK][:, :, 1] = 1
        batch.action.fill_(1)
    losses = []
    for conservative in (0.0, 0.7):
        torch.manual_seed(0)
        config = DqnConfig(hidden=16, gamma=0.9, normalize_reward=True, conservative=conservative)
        dqn = make_update(spec, config)
        assert dqn.scaling is not None
        dqn.scaling.scale.fill_(scale)
        losses.append(float(dqn.loss(Weighted(batch, weight)).value.detach()))
    step = transition(batch, 0.9)
    with torch.no_grad():
        values = (dqn.policy(step.observation) / scale).tolist()
    expected = 0.0
    for item, row in enumerate(values):
        allowed = step.observation[ACTION_MASK][item, -1].bool().tolist() if spec is MASKED else [True] * N
        total = sum(math.exp(value) for value, may in zip(row, allowed, strict=True) if may)
        expected += float(weight[item]) * (math.log(total) - row[int(batch.action[item])]) / len(values)
    assert losses[1] - losses[0] == pytest.approx(0.7 * expected, rel=1e-4) and expected > 0.1
