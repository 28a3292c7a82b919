from __future__ import annotations

import math

import pytest
import torch

from learner.algorithms.base import take_rows, transition
from learner.returns import double_q_target, importance_weights, n_step_return
from tests.learner.examples import image, make_batch, make_spec, vector


@pytest.mark.parametrize("gamma", [0.0, 0.9, 1.0])
def test_n_step_returns_equal_a_loop_over_the_steps(gamma: float) -> None:
    torch.manual_seed(0)
    items, n = 200, 5
    reward = torch.randn(items, n)
    steps = torch.randint(1, n + 1, (items,))
    terminated = torch.rand(items) < 0.5
    return_, discount = n_step_return(reward, steps, terminated, gamma)
    for item in range(items):
        expected = 0.0
        m = int(steps[item])
        for k in range(m):
            expected += gamma**k * float(reward[item, k])
        assert float(return_[item]) == pytest.approx(expected, abs=1e-5)
        assert float(discount[item]) == pytest.approx(0.0 if terminated[item] else gamma**m, abs=1e-6)
    assert return_.dtype == discount.dtype == torch.float32


def test_rewards_past_the_boundary_do_not_leak_whatever_they_are() -> None:
    reward = torch.tensor([[1.0, math.nan, math.inf], [1.0, 2.0, -math.inf], [1.0, 2.0, 4.0]])
    return_, discount = n_step_return(reward, torch.tensor([1, 2, 3]), torch.tensor([True, False, False]), 0.5)
    assert return_.tolist() == [1.0, 2.0, 3.0]
    assert discount.tolist() == [0.0, 0.25, 0.125]


def test_the_double_q_target_equals_a_loop_and_the_plain_one_is_the_maximum() -> None:
    torch.manual_seed(1)
    return_, discount = torch.randn(50), torch.rand(50)
    selecting, valuing = torch.randn(50, 4), torch.randn(50, 4)
    target = double_q_target(return_, discount, selecting, valuing)
    plain = double_q_target(return_, discount, valuing, valuing)
    for item in range(50):
        choices = selecting[item].tolist()
        value = float(valuing[item, choices.index(max(choices))])
        assert float(target[item]) == pytest.approx(float(return_[item]) + float(discount[item]) * value, abs=1e-5)
        assert float(plain[item]) == pytest.approx(
            float(return_[item]) + float(discount[item]) * max(valuing[item].tolist()), abs=1e-5
        )


def test_what_follows_a_termination_does_not_reach_the_target() -> None:
    broken = torch.full((1, 2), math.nan)
    assert double_q_target(torch.tensor([3.0]), torch.tensor([0.0]), broken, broken).tolist() == [3.0]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("population", [1, 1_000_000])
def test_importance_weights_equal_the_formula_whatever_the_population(beta: float, population: int) -> None:
    torch.manual_seed(2)
    probability = torch.rand(40, dtype=torch.float64) * 1e-5 + 1e-9
    weights = [(population * float(p)) ** -beta for p in probability]
    expected = [weight / max(weights) for weight in weights]
    found = importance_weights(probability, beta)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx(expected, rel=1e-5)
    assert float(found.max()) == 1.0


def test_a_transition_stacks_the_rows_that_the_indices_name() -> None:
    torch.manual_seed(3)
    spec = make_spec(image(shape=(3, 5, 4)), vector(), stack=3, n_step=4)
    batch = make_batch(spec, 9)
    width = spec.stack + spec.n_step
    batch = batch._replace(
        observation_index=torch.randint(width, (9, 3)), next_index=torch.randint(width, (9, 3))
    )  # repeated rows, as at an episode's start
    stacked = transition(batch, 0.9)
    for name, rows in batch.observation.items():
        for item in range(9):
            for place in range(3):
                now, later = int(batch.observation_index[item, place]), int(batch.next_index[item, place])
                assert torch.equal(stacked.observation[name][item, place], rows[item, now])  # type: ignore[index]
                assert torch.equal(stacked.next_observation[name][item, place], rows[item, later])  # type: ignore[index]


def test_rows_are_taken_from_a_part_of_a_batch_as_from_the_whole() -> None:
    spec = make_spec(vector(), stack=2, n_step=3)
    batch = make_batch(spec, 8)
    part = batch.part(3, 6)
    whole = take_rows(batch.observation["vector"], batch.next_index)
    assert torch.equal(take_rows(part.observation["vector"], part.next_index), whole[3:6])
    assert len(part.probability) == len(part.action) == len(part.reward) == 3
