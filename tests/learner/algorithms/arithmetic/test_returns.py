from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from learner.algorithms.arithmetic.returns import gae, importance_weights, lambda_return, n_step_return, vtrace
from learner.algorithms.arithmetic.transitions import Transition, transition
from learner.algorithms.dqn.loss import double_q_target
from learner.networks.stacks import take_rows
from learner.updates.trees import count, part
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


def following(return_: Tensor, discount: Tensor) -> Transition:
    return Transition({}, torch.zeros(0), return_, discount, {})


def test_the_double_q_target_equals_a_loop_and_the_plain_one_is_the_maximum() -> None:
    torch.manual_seed(1)
    return_, discount = torch.randn(50), torch.rand(50)
    selecting, valuing = torch.randn(50, 4), torch.randn(50, 4)
    target = double_q_target(make_spec(vector()), following(return_, discount), selecting, valuing)
    plain = double_q_target(make_spec(vector()), following(return_, discount), valuing, valuing)
    for item in range(50):
        choices = selecting[item].tolist()
        value = float(valuing[item, choices.index(max(choices))])
        assert float(target[item]) == pytest.approx(float(return_[item]) + float(discount[item]) * value, abs=1e-5)
        assert float(plain[item]) == pytest.approx(
            float(return_[item]) + float(discount[item]) * max(valuing[item].tolist()), abs=1e-5
        )


def test_what_follows_a_termination_does_not_reach_the_target() -> None:
    broken = torch.full((1, 2), math.nan)
    step = following(torch.tensor([3.0]), torch.tensor([0.0]))
    assert double_q_target(make_spec(vector()), step, broken, broken).tolist() == [3.0]


@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize("population", [1, 1_000_000])
def test_importance_weights_equal_the_formula_whatever_the_population(beta: float, population: int) -> None:
    torch.manual_seed(2)
    probability = torch.rand(40, dtype=torch.float64) * 1e-5 + 1e-9
    weights = [(population * float(p)) ** -beta for p in probability]
    expected = [weight / max(weights) for weight in weights]
    found = importance_weights(probability, beta)
    assert found.dtype == torch.float32
    assert (found / found.max()).tolist() == pytest.approx(expected, rel=1e-5)


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
                assert torch.equal(stacked.observation[name][item, place], rows[item, now])
                assert torch.equal(stacked.next_observation[name][item, place], rows[item, later])


def test_rows_are_taken_from_a_part_of_a_batch_as_from_the_whole() -> None:
    spec = make_spec(vector(), stack=2, n_step=3)
    batch = make_batch(spec, 8)
    some = part(batch, 3, 6)
    whole = take_rows(batch.observation["vector"], batch.next_index)
    assert torch.equal(take_rows(some.observation["vector"], some.next_index), whole[3:6])
    assert len(some.probability) == len(some.action) == len(some.reward) == count(some) == 3


GAMMA, TRACE = 0.9, 0.7


class Steps(NamedTuple):
    reward: torch.Tensor
    discount: torch.Tensor
    value: torch.Tensor
    next_value: torch.Tensor
    cut: torch.Tensor


def stretches(length: int = 24, streams: int = 6) -> Steps:
    """Steps [T, B] of which some terminate and some are cut without terminating; next values go on where nothing was cut."""
    torch.manual_seed(4)
    terminated = torch.rand(length, streams) < 0.15
    cut = terminated | (torch.rand(length, streams) < 0.15)
    cut[-1] = True
    value, last = torch.randn(length, streams), torch.randn(length, streams)
    following = torch.cat([value[1:], last[-1:]])
    next_value = torch.where(cut, last, following)  # a truncated episode's last observation has a value of its own
    return Steps(torch.randn(length, streams), torch.where(terminated, 0.0, GAMMA), value, next_value, cut)


def end_of(steps: Steps, t: int, b: int) -> int:
    """The last step of the stretch that step t is in."""
    while not steps.cut[t, b]:
        t += 1
    return t


def delta(steps: Steps, t: int, b: int) -> float:
    bootstrap = float(steps.discount[t, b]) * float(steps.next_value[t, b])
    return float(steps.reward[t, b]) + bootstrap - float(steps.value[t, b])


def test_advantages_are_the_discounted_sum_of_td_errors_up_to_the_cut() -> None:
    steps = stretches()
    advantage = gae(*steps, TRACE)
    for t, b in itertools.product(range(24), range(6)):
        expected = sum((GAMMA * TRACE) ** (k - t) * delta(steps, k, b) for k in range(t, end_of(steps, t, b) + 1))
        assert float(advantage[t, b]) == pytest.approx(expected, abs=1e-5)


def n_step_advantage(steps: Steps, t: int, b: int, n: int) -> float:
    """r_t + gamma r_{t+1} + … + gamma^n V(s_{t+n}) - V(s_t)."""
    total, discount = -float(steps.value[t, b]), 1.0
    for k in range(t, t + n):
        total += discount * float(steps.reward[k, b])
        discount *= float(steps.discount[k, b])
    return total + discount * float(steps.next_value[t + n - 1, b])


@pytest.mark.parametrize("trace", [0.0, 0.7, 1.0])
def test_advantages_are_the_exponentially_weighted_mean_of_n_step_advantages(trace: float) -> None:
    steps = stretches()
    advantage = gae(*steps, trace)
    for t, b in itertools.product(range(24), range(6)):
        longest = end_of(steps, t, b) + 1 - t
        weights = [(1 - trace) * trace ** (n - 1) for n in range(1, longest)] + [trace ** (longest - 1)]
        assert sum(weights) == pytest.approx(1)
        expected = sum(weight * n_step_advantage(steps, t, b, n + 1) for n, weight in enumerate(weights))
        assert float(advantage[t, b]) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("trace", [0.7, 1.0])
def test_v_trace_targets_equal_the_sum_over_products_of_clipped_ratios(trace: float) -> None:
    steps = stretches()
    ratio = torch.exp(torch.randn(24, 6))
    target, advantage = vtrace(*steps, ratio, trace)

    def v(t: int, b: int) -> float:
        """Equation 1, with c = trace * min(1, ratio)."""
        total, product = float(steps.value[t, b]), 1.0
        for k in range(t, end_of(steps, t, b) + 1):
            total += product * min(1.0, float(ratio[k, b])) * delta(steps, k, b)
            product *= GAMMA * trace * min(1.0, float(ratio[k, b]))
        return total

    for t, b in itertools.product(range(24), range(6)):
        assert float(target[t, b]) == pytest.approx(v(t, b), abs=1e-5)
        following = float(steps.next_value[t, b])
        if not steps.cut[t, b]:
            following += trace * (v(t + 1, b) - following)
        gain = float(steps.reward[t, b]) + float(steps.discount[t, b]) * following - float(steps.value[t, b])
        assert float(advantage[t, b]) == pytest.approx(min(1.0, float(ratio[t, b])) * gain, abs=1e-5)


def test_v_trace_by_hand() -> None:
    column = torch.tensor([[1.0], [2.0]])
    value, next_value = torch.tensor([[10.0], [20.0]]), torch.tensor([[20.0], [40.0]])
    cut, ratio = torch.tensor([[False], [True]]), torch.tensor([[0.5], [8.0]])
    target, advantage = vtrace(column, torch.full((2, 1), 0.5), value, next_value, cut, ratio, 1.0)
    # Second step: 20 + 1 (2 + 0.5 * 40 - 20) = 22. First: 10 + 0.5 (1 + 0.5 * 20 - 10) + 0.5 * 0.5 * (22 - 20) = 11.
    assert target.flatten().tolist() == [11.0, 22.0]
    assert advantage.flatten().tolist() == [0.5 * (1 + 0.5 * 22 - 10), 2.0]


def test_v_trace_of_ones_own_steps_is_gae() -> None:
    steps = stretches()
    target, advantage = vtrace(*steps, torch.ones(24, 6), TRACE)
    torch.testing.assert_close(advantage, gae(*steps, TRACE))
    torch.testing.assert_close(target, steps.value + advantage)


def test_nothing_behind_a_cut_reaches_what_is_before_it() -> None:
    steps = stretches()
    expected, expected_v = gae(*steps, TRACE), vtrace(*steps, torch.ones(24, 6), TRACE)
    steps.cut[11] = True
    before = gae(*steps, TRACE), *vtrace(*steps, torch.ones(24, 6), TRACE)
    assert not torch.equal(before[0][:12], expected[:12]) and not torch.equal(before[1][:12], expected_v[0][:12])
    for column in steps[:4]:
        column[12:] = math.nan
    steps.next_value[steps.discount == 0] = math.nan  # nor does what follows a termination
    after = gae(*steps, TRACE), *vtrace(*steps, torch.ones(24, 6), TRACE)
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one[:12], other[:12])


@pytest.mark.parametrize("q_lambda", [0.0, 0.6, 1.0])
def test_lambda_returns_equal_the_mean_of_random_stops(q_lambda: float) -> None:
    """After each step a walk goes on with probability lambda, else it stops and takes the value: the mean over its stops."""
    torch.manual_seed(5)
    steps, streams, gamma = 9, 40, 0.9
    reward, value = torch.randn(steps, streams), torch.randn(steps, streams)
    terminated = torch.rand(steps, streams) < 0.2
    cut = terminated | (torch.rand(steps, streams) < 0.2)
    cut[-1] = True
    discount = torch.where(terminated, 0.0, gamma)
    value[terminated] = math.nan
    found = lambda_return(reward, discount, value, cut, q_lambda)
    for stream, first in itertools.product(range(streams), range(steps)):
        mean, arrives, rewards = 0.0, 1.0, 0.0
        for t in range(first, steps):
            rewards += gamma ** (t - first) * float(reward[t, stream])
            stops = 1.0 if cut[t, stream] else 1 - q_lambda
            after = 0.0 if terminated[t, stream] else gamma ** (t - first + 1) * float(value[t, stream])
            mean += arrives * stops * (rewards + after)
            arrives *= 1 - stops
            if cut[t, stream]:
                break
        assert float(found[first, stream]) == pytest.approx(mean, abs=1e-5)


def test_what_follows_a_cut_does_not_reach_a_lambda_return_whatever_it_is() -> None:
    reward = torch.tensor([[1.0], [math.inf], [math.nan]])
    value, cut = torch.tensor([[2.0], [math.nan], [math.nan]]), torch.tensor([[True], [False], [True]])
    found = lambda_return(reward, torch.full((3, 1), 0.5), value, cut, 0.9)
    assert float(found[0]) == 2.0
