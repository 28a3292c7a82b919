"""REPPO's targets, losses and scale, against naive ones. Equality with arrays: tests/learner/engine/test_equality.py."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch.distributions import Normal, kl_divergence

from learner.algorithms.arithmetic import rollouts as rollouts_in_torch
from learner.algorithms.arithmetic.squashed import log_density
from learner.algorithms.base import join
from learner.algorithms.reppo import arrays, losses, scale
from learner.algorithms.reppo.algorithm import Reppo
from learner.algorithms.reppo.config import ReppoConfig
from learner.config import LearnerConfig
from learner.engine import rollouts
from learner.parallel.base import ALONE
from tests.learner.engine.arrays import in_arrays
from tests.learner.examples import LEARNER, figures, image, make_update, vector
from tests.learner.rollouts import observe, rolled
from transport.experience import Chunk, Column, Continuous, ExperienceSpec, observed

QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)
GOALS = (vector("observation", 3), vector("achieved_goal", 2), vector("desired_goal", 2))


def make(*fields: Column, stack: int = 1) -> ExperienceSpec:
    env = ExperienceSpec(fields, Continuous((-1.0, -2.0), (1.0, 3.0)), 8, stack)
    return join(env, Reppo(ReppoConfig()).needs(env))


VECTOR = make(vector())
SPECS = {
    "vector": VECTOR,
    "stacked vectors": make(vector(), QUANTISED, stack=3),
    "goal": make(*GOALS),
    "image and vector": make(image(shape=(2, 13, 11)), vector(), stack=2),
}


def made(spec: ExperienceSpec, learner: LearnerConfig = LEARNER, **options: Any) -> Any:
    """Its statistics are away from none."""
    torch.manual_seed(1)
    network = {"network": "nature"} if spec.has_images else {}
    config = {"hidden": 16, "gamma": 0.9, "q_lambda": 0.7, "temperature": 0.3, "critics": 2} | network | options
    update = make_update(spec, msgspec.convert(config, ReppoConfig), learner)
    rows = {name: torch.from_numpy(column) for name, column in observe(spec, 50, np.random.default_rng(5)).items()}
    update.policy.body.inputs.observe(rows, torch.ones(50, dtype=torch.bool))
    return update


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy draws its means."""
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)


def value_and_log_prob(update: Any, chunk: Chunk, row: int) -> tuple[float, float]:
    """Of the policy's mean in a row, stacked by looking back until the episode begins."""
    columns, stack = chunk.columns, update.spec.stack
    places = [row]
    while len(places) < stack:
        places.insert(0, places[0] - 1 if columns["episode_step"][places[0]] > 0 else places[0])
    stacked = {field.name: torch.from_numpy(columns[field.name][places][None]) for field in update.spec.fields}
    with torch.no_grad():
        output = update.policy(stacked)
        mean, log_std = output.chunk(2, 1)
        value = update.critics(update.policy.body.preprocess(stacked), mean.tanh()).min()
    return float(value), float(log_density(mean.numpy(), mean.numpy(), log_std.clamp(-5, 2).numpy())[0])


def expected_targets(update: Any, chunk: Chunk, ratio: float, unit: float) -> list[float]:
    """The lambda return of each item as the weighted mean of its n-step returns. The reward of a step is divided by the scale
    `unit`, and has the entropy of the next action; values by the older scale are multiplied by `ratio`."""
    columns, history, config = chunk.columns, update.spec.history, update.config
    rows = range(history, history + chunk.length)
    soft = {row + 1: value_and_log_prob(update, chunk, row + 1) for row in rows}
    found = []
    for first in rows:
        if not columns["valid"][first]:
            continue
        n_step_returns, rewards = [], 0.0
        for row in range(first, rows.stop):
            k, (value, log_prob) = row - first, soft[row + 1]
            terminated, truncated = bool(columns["terminated"][row]), bool(columns["truncated"][row])
            entropy = 0.0 if terminated else -config.temperature * config.gamma * log_prob
            rewards += config.gamma**k * (config.reward_scale * float(columns["reward"][row]) / unit + entropy)
            n_step_returns.append(rewards + (0.0 if terminated else config.gamma ** (k + 1) * value * ratio))
            if terminated or truncated or not columns["valid"][row + 1]:
                break
        weights = [(1 - config.q_lambda) * config.q_lambda**k for k in range(len(n_step_returns) - 1)]
        weights.append(1 - sum(weights))
        found.append(sum(weight * value for weight, value in zip(weights, n_step_returns, strict=True)))
    return found


@pytest.mark.parametrize("name", SPECS)
def test_targets_equal_weighted_n_step_returns_of_soft_values(name: str, still: None) -> None:
    update = made(SPECS[name], reward_scale=2.0)
    rollout, chunks, _ = rolled(update)
    ends = {kind for chunk in chunks for kind in ("terminated", "truncated") if chunk.columns[kind].any()}
    assert ends == {"terminated", "truncated"} and min(chunk.length for chunk in chunks) < 8, "the rollout has no such case"
    items, _ = update.prepare(rollout)
    unit = float(update.scaling.scale)
    assert unit != 1
    expected = [target for chunk in chunks for target in expected_targets(update, chunk, 1 / unit, unit)]
    assert len(expected) == len(items.target) == 3 * 37, "each step is an item once"
    np.testing.assert_allclose(items.target, expected, atol=5e-5)


def outputs(seed: int, *more: float) -> torch.Tensor:
    """[6, 6]: means and log-stds of three actions, some of them out of bounds."""
    random = np.random.default_rng(seed)
    found = np.concatenate([random.normal(size=(6, 3)), random.normal(-1, 1, (6, 3))], 1).astype(np.float32)
    found[: len(more), 4] = more
    return torch.from_numpy(found)


def test_the_divergence_and_its_gradient_are_those_of_torchs_distributions() -> None:
    before, now = losses.bounded_log_std(outputs(1)), outputs(2, -7.0, 3.0).requires_grad_()
    old, new = (Normal(each[:, :3], each[:, 3:].clamp(-5, 2).exp()) for each in (before, now))
    expected = kl_divergence(old, new).sum(1)
    (slope,) = torch.autograd.grad(expected.sum(), now)
    assert slope[0, 4] == slope[1, 4] == 0, "no case out of bounds"
    kl = losses.divergence(now, before)
    torch.testing.assert_close(kl, expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(torch.autograd.grad(kl.sum(), now)[0], slope, rtol=1e-4, atol=1e-4)
    found, by_output = arrays.divergence(now.detach().numpy(), before.numpy())
    np.testing.assert_allclose(found, expected.detach(), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(by_output, slope, rtol=1e-4, atol=1e-4)


def moved_items(update: Any, by: float) -> tuple[Any, Any]:
    """A rollout's items, as if each mean of the policy had moved by that many standard deviations."""
    items, rows = update.prepare(rolled(update)[0])
    mean, log_std = items.before.chunk(2, 1)
    return items._replace(before=torch.cat([mean - by * log_std.exp(), log_std], 1)), rows


def test_within_the_bound_the_policy_follows_the_critics_and_beyond_it_the_policy_before(still: None) -> None:
    for by in (0.3, 1.0):
        update = made(VECTOR, kl_bound=0.5, kl_coef=0.2)
        items, rows = moved_items(update, by)
        loss, metrics, _ = update.policy_loss(items, rows)
        loss.backward()
        bias = update.policy.head[0].bias
        assert all(parameter.grad is None for parameter in update.critics.parameters())
        assert float(metrics["kl"]) == pytest.approx(by**2, abs=1e-5)  # of two dimensions, half each
        assert float(metrics["clip_fraction"]) == (by == 1)
        inputs, output = update._outputs(rows, items.observation_index)
        mean, log_std = output.chunk(2, 1)
        value = update.critics(inputs, mean.tanh()).amin(0)
        density = -log_std.sum(1) - torch.log(1 - mean.tanh().square()).sum(1)
        wanted = 0.3 * density - value if by < 1 else 0.2 * losses.divergence(output, items.before)
        (expected,) = torch.autograd.grad(wanted.mean(), bias)
        torch.testing.assert_close(bias.grad, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize(("target", "sign"), [(9.0, 1), (-9.0, -1)])
def test_the_temperature_follows_the_wanted_entropy(target: float, sign: int) -> None:
    update = made(VECTOR, target_entropy=target, temperature_rate=0.01)
    update.update(rolled(update)[0])
    assert sign * (math.exp(update.temperature.log.item()) - 0.3) > 0.003


@pytest.mark.parametrize(("by", "sign"), [(0.0, -1), (1.0, 1)])
def test_the_weight_of_the_divergence_follows_its_bound(by: float, sign: int) -> None:
    update = made(VECTOR, kl_bound=0.5, kl_coef=0.2, kl_coef_rate=0.01)
    update.step(*moved_items(update, by))
    assert math.log(0.2) + 0.01 * sign == pytest.approx(update.kl_coef.log.item(), abs=1e-4)


def test_a_reward_that_is_not_finite_is_ignored_and_an_observation_skips_the_step() -> None:
    update = made(VECTOR, n_epochs=1, minibatches=1)
    rollout, _, _ = rolled(update)
    before = {name: value.clone() for name, value in update.critics.state_dict().items()}
    rollout.reward[:, 3] = math.inf
    metrics = update.update(rollout).metrics
    assert 0 < float(metrics["ignored"]) < 1 and float(update.scaling.scale) == 1 and figures(update)["skipped_updates"] == 0
    learned = update.critics.state_dict()
    assert all(learned[name].isfinite().all() and not torch.equal(value, learned[name]) for name, value in before.items())
    rollout.observation["vector"][0, 2] = math.nan
    before = {name: value.clone() for name, value in update.policy.state_dict().items() if "normaliser" not in name}
    update.update(rollout)
    assert figures(update)["skipped_updates"] == 1
    assert all(torch.equal(value, update.policy.state_dict()[name]) for name, value in before.items())


def squares(update: Any, rollout: Any) -> tuple[float, float]:
    """By torch, by arrays."""
    config = update.config
    by_torch = losses.value_square(rollouts_in_torch.Rollout(rollout, update.spec, config), config.gamma, ALONE)
    return float(by_torch), scale.value_square(rollouts.Rollout(in_arrays(rollout), update.spec, config), config.gamma)


def test_steady_rewards_are_worth_what_they_are_for_ever_wherever_a_rollout_ends() -> None:
    update = made(VECTOR)
    rollout, _, _ = rolled(update)
    rollout = rollout._replace(reward=torch.full_like(rollout.reward, -3.0), terminated=torch.zeros_like(rollout.terminated))
    assert rollout.truncated.any()
    assert squares(update, rollout) == pytest.approx((30.0**2,) * 2, rel=1e-5)
    ended = rollout._replace(terminated=torch.ones_like(rollout.terminated))
    assert squares(update, ended) == pytest.approx((3.0**2,) * 2, rel=1e-5), "the only reward is all there is"


def test_a_scale_is_a_running_mean_and_keeps_what_is_not_usable_out() -> None:
    by_torch, by_arrays = losses.ReturnScale(), scale.ReturnScale()
    mean = before = 0.0
    for number, square in enumerate([0.0, math.nan, 9.0, 36.0, math.inf, *[81.0] * 40, 0.0]):
        ratios = float(by_torch.observe(torch.tensor(square))), float(by_arrays.observe(square))
        if number < 2 or not math.isfinite(square):
            expected = 1.0
        else:
            seen = number - 1 if number < 4 else number - 2
            mean += max(1 / seen, 0.05) * (square - mean)
            expected = (before or 1.0) / (math.sqrt(mean) / 3)
            before = math.sqrt(mean) / 3
        assert ratios == pytest.approx((expected,) * 2, rel=1e-5), number
        assert (float(by_torch.scale), float(by_arrays.scale)) == pytest.approx((before or 1.0,) * 2, rel=1e-5)


def test_rewards_of_any_size_teach_the_same(still: None) -> None:
    found = []
    for size in (1.0, 1_000.0):
        update = made(VECTOR, reward_scale=size)
        rollout, _, _ = rolled(update)
        for _ in range(2):  # then values were learned with the scale
            torch.manual_seed(3)
            update.update(rollout)
        found.append(update.prepare(rollout)[0].target)
    torch.testing.assert_close(*found, rtol=0.05, atol=0.02)
    assert float(found[0].std()) > 0.2


def test_images_need_a_network_of_their_own_and_discrete_actions_another_algorithm() -> None:
    with pytest.raises(ValueError, match="reppo learns from vectors, but the observation has an image"):
        Reppo(ReppoConfig()).policy(make(image()))
    assert Reppo(ReppoConfig()).describe(make(image())) is None
    assert Reppo(ReppoConfig(network="compact")).policy(make(image())).head is not None
