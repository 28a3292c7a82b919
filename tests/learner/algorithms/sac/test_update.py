"""SAC's gradients, its targets, its temperature and its hindsight."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import linear

from learner.algorithms.arithmetic import gaussian
from learner.algorithms.arithmetic.rollouts import take
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, LEAST_LOG_STD
from learner.algorithms.arithmetic.transitions import transition
from learner.algorithms.base import Needs, join
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.losses import soft_target
from learner.algorithms.sac.networks import Critics
from learner.config import LearnerConfig
from learner.networks.parts import Concat
from learner.updates.base import Transitions
from learner.weights.checkpoint import load_into
from tests.learner.acting import Acting, algorithm_of
from tests.learner.examples import gradients, image, make_observation, make_update, vector
from transport.experience import Categorical, Continuous, ExperienceSpec

ACTIONS = Continuous((-1.0, -2.0), (1.0, 3.0))
GOALS = (vector("achieved_goal", 3), vector("desired_goal", 3), vector("observation", 5))
LEARNER = LearnerConfig(batch_size=32, learning_rate=1e-2, adam_epsilon=1e-8, max_grad_norm=1e6)


def make_spec(stack: int = 1, hindsight: int = 0) -> ExperienceSpec:
    return join(ExperienceSpec(GOALS, ACTIONS, 16, stack), Needs(goals=hindsight))


def make_batch(spec: ExperienceSpec, items: int = 32) -> Transitions:
    """Random items, some terminated."""
    terminated = torch.rand(items) < 0.3
    here = torch.arange(spec.stack).expand(items, -1)
    goals = torch.randn(items, spec.goals, 3) if spec.goals else None
    return Transitions(
        observation=make_observation(spec.fields, (items, spec.stack + 1)),
        observation_index=here,
        next_index=here + (~terminated).long()[:, None],
        action=torch.randn(items, 2),
        reward=-torch.rand(items, 1),
        steps=torch.ones(items, dtype=torch.int64),
        terminated=terminated,
        probability=torch.full((items,), 0.01),
        extras={} if goals is None else {HINDSIGHT_GOAL: goals, HINDSIGHT_REWARD: goals.sum(2)},
    )


def naive_values(critics: Critics, features: Tensor, action: Tensor) -> Tensor:
    """[2, B]: one critic after the other, one layer after the other."""
    values = []
    for which in (0, 1):
        hidden = torch.cat([features, torch.tanh(action)], 1)
        pairs = list(zip(critics.weights, critics.biases, strict=True))
        for number, (weight, bias) in enumerate(pairs):
            hidden = linear(hidden, weight[which], bias[which, 0])
            hidden = hidden if number == len(pairs) - 1 else hidden.relu()
        values.append(hidden[:, 0])
    return torch.stack(values)


def naive_gradients(algorithm: Any, batch: Transitions, noise: Tensor) -> tuple[list[Tensor], Tensor]:
    """Of each parameter by its own loss alone, and |td| [B]; noise: [2B, A], for now and for what comes next."""
    config, items = algorithm.config, len(batch.reward)
    step = transition(batch, config.gamma)
    body = algorithm.policy.body
    now, following = (Concat()(body.preprocess(rows)) for rows in (step.observation, step.next_observation))
    temperature = algorithm.temperature.log.exp()

    def draw(observation: object, noise: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = algorithm.policy(observation).chunk(2, 1)
        log_std = log_std.clamp(LEAST_LOG_STD, GREATEST_LOG_STD)
        action = mean + log_std.exp() * noise
        return action, gaussian.log_prob(action, mean, log_std)

    with torch.no_grad():
        action, log_prob = draw(step.next_observation, noise[items:])
        next_value = naive_values(algorithm.target, following, action).amin(0) - temperature * log_prob
        goal = step.return_ * config.reward_scale + step.discount * next_value
        if config.clip_targets:
            goal = goal.clamp(-config.reward_scale / (1 - config.gamma), 0)
    td = goal - naive_values(algorithm.critics, now, batch.action)
    critic_loss = sum(0.5 * error.square().mean() for error in td)
    action, log_prob = draw(step.observation, noise[:items])
    value = naive_values(algorithm.critics, now, action).amin(0)
    policy_loss = (temperature.detach() * log_prob - value).mean()
    bounded = torch.tanh(algorithm.policy(step.observation).chunk(2, 1)[0])
    distance = ((bounded - torch.tanh(batch.action)) ** 2).sum(1).mean() / batch.action.shape[1]
    policy_loss = policy_loss + config.imitation * float(value.detach().abs().mean()) * distance
    entropy_above = -log_prob.detach() - algorithm.target_entropy
    temperature_loss = (algorithm.temperature.log * entropy_above).mean()
    found = [
        *torch.autograd.grad(policy_loss, list(algorithm.policy.parameters())),
        *torch.autograd.grad(critic_loss, list(algorithm.critics.parameters())),  # type: ignore[arg-type]
        *torch.autograd.grad(temperature_loss, [algorithm.temperature.log]),
    ]
    return found, td.detach().abs().amax(0)


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("stack", [1, 2])
@pytest.mark.parametrize(("clip_targets", "imitation"), [(False, 0.0), (True, 0.0), (False, 0.4)])
def test_gradients_are_those_of_three_losses_each_by_its_own_parameters(
    layers: int, stack: int, clip_targets: bool, imitation: float
) -> None:
    torch.manual_seed(stack)
    config = SacConfig(
        gamma=0.6, hidden=16, layers=layers, clip_targets=clip_targets, reward_scale=2.0, temperature=0.7, imitation=imitation
    )
    algorithm = make_update(make_spec(stack), config)
    for parameter in algorithm.target.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))  # not the same as the critics
    with torch.no_grad():
        list(algorithm.policy.parameters())[-2].mul_(8.0)  # some deviations are out of bounds
    batch = make_batch(make_spec(stack))
    torch.manual_seed(7)
    noise = torch.randn(64, 2)
    expected, errors = naive_gradients(algorithm, batch, noise)
    torch.manual_seed(7)
    loss, metrics, priority = algorithm.loss(batch)
    loss.backward()
    for parameter, gradient in zip(algorithm.optimiser.parameters, expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(priority, errors, rtol=1e-4, atol=1e-5)
    assert all(value.dim() == 0 and not value.requires_grad for value in metrics.values())
    assert all(parameter.grad is None for parameter in algorithm.target.parameters())


def test_targets_stay_between_the_least_and_the_greatest_of_sparse_rewards() -> None:
    batch = make_batch(make_spec(), 4)._replace(reward=-torch.ones(4, 1), terminated=torch.tensor([False, False, False, True]))
    next_value = torch.tensor([-100.0, 50.0, -2.0, torch.nan])
    clipped = SacConfig(gamma=0.9, clip_targets=True, reward_scale=2.0)
    assert torch.allclose(soft_target(batch, next_value, clipped, torch.ones(())), torch.tensor([-20.0, 0.0, -3.8, -2.0]))
    free = SacConfig(gamma=0.9, reward_scale=2.0)
    assert torch.allclose(soft_target(batch, next_value, free, torch.ones(())), torch.tensor([-92.0, 43.0, -3.8, -2.0]))


def test_with_normalised_rewards_the_critics_regress_on_scaled_targets_and_errors_are_reported_unscaled() -> None:
    torch.manual_seed(2)
    spec = make_spec()
    algorithm = make_update(spec, SacConfig(gamma=0.6, hidden=16, reward_scale=2.0, normalize_reward=True), LEARNER)
    for _ in range(10):
        algorithm.update(make_batch(spec)._replace(reward=1e4 * make_batch(spec).reward))
    scale, batch = float(algorithm.scaling.scale), make_batch(spec)
    batch = batch._replace(reward=1e4 * batch.reward, terminated=torch.ones(32, dtype=torch.bool))  # no draw matters
    assert 1e2 < scale < 1e5
    loss, metrics, priority = algorithm.loss(batch)
    with torch.no_grad():
        seen = algorithm.policy.body.preprocess(transition(batch, 0.6).observation)
        q = algorithm.critics(seen, torch.tanh(batch.action))
    td = 2.0 * batch.reward[:, 0] / scale - q
    torch.testing.assert_close(priority, scale * td.abs().amax(0), rtol=1e-4, atol=1e-2)
    assert float(metrics["loss"]) == pytest.approx(float(0.5 * td.square().mean(1).sum()), rel=1e-4)
    assert float(metrics["q"]) == pytest.approx(scale * float(q.mean()), rel=1e-4)
    before = (algorithm.critics(seen, batch.action) * scale, algorithm.target(seen, batch.action) * scale)
    algorithm.scaling.observe(torch.tensor(1e12), torch.tensor(1e8))
    after = algorithm.critics(seen, batch.action), algorithm.target(seen, batch.action)
    torch.testing.assert_close([value * algorithm.scaling.scale for value in after], list(before), rtol=1e-4, atol=1e-2)


def test_an_item_that_is_not_finite_teaches_the_critics_nothing() -> None:
    algorithm, ended = make_update(make_spec(), SacConfig(hidden=8)), torch.ones(32, dtype=torch.bool)
    batch = make_batch(make_spec())._replace(terminated=ended)  # so that what critics learn hangs on no draw
    parameters, critics = algorithm.optimiser.parameters, len(list(algorithm.policy.parameters()))

    def found(batch: Transitions) -> list[Tensor]:
        torch.manual_seed(0)
        return gradients(algorithm.loss(batch).value, parameters)

    others = take(batch, torch.tensor([item for item in range(32) if item != 3]))
    finite = found(batch)
    batch.reward[3] = torch.inf
    torch.manual_seed(0)
    _, metrics, priority = algorithm.loss(batch)
    assert priority[3] == 0 and metrics["ignored"].item() == pytest.approx(1 / 32)
    broken = found(batch)
    torch.testing.assert_close([*broken[:critics], broken[-1]], [*finite[:critics], finite[-1]])
    torch.testing.assert_close(broken[critics:-1], [31 / 32 * gradient for gradient in found(others)[critics:-1]])


def test_the_target_follows_the_critics_by_tau() -> None:
    algorithm = make_update(make_spec(), SacConfig(hidden=8, tau=0.25))
    before = [parameter.clone() for parameter in algorithm.target.parameters()]
    with torch.no_grad():
        for parameter in algorithm.critics.parameters():
            parameter.add_(1.0)
    algorithm.follow()
    for old, new in zip(before, algorithm.target.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.25)


@pytest.mark.parametrize(("target_entropy", "sign"), [(-30.0, -1), (30.0, 1)])
def test_the_temperature_goes_where_the_entropy_is_to_go_at_a_rate_of_its_own(target_entropy: float, sign: int) -> None:
    config = SacConfig(hidden=8, target_entropy=target_entropy, temperature=0.5, temperature_rate=0.03)
    algorithm = make_update(make_spec(), config, LEARNER)
    before, weight = algorithm.temperature.log.item(), next(algorithm.policy.parameters()).clone()
    algorithm.update(make_batch(make_spec()))
    assert algorithm.counters == {"updates": 1}
    assert algorithm.temperature.log.item() - before == pytest.approx(sign * 0.03, rel=1e-3), "Adam's first step is the rate"
    assert (next(algorithm.policy.parameters()) - weight).abs().max().item() == pytest.approx(0.01, rel=1e-2)
    algorithm.optimiser.scale_learning_rate(0.5)
    before = algorithm.temperature.log.item()
    algorithm.update(make_batch(make_spec()))
    assert algorithm.temperature.log.item() - before == pytest.approx(sign * 0.015, rel=1e-2)


def test_a_temperature_without_a_rate_stays() -> None:
    algorithm = make_update(make_spec(), SacConfig(hidden=8, temperature_rate=0.0), LEARNER)
    for _ in range(3):
        metrics, _ = algorithm.update(make_batch(make_spec()))
    assert metrics["temperature"].item() == pytest.approx(0.2)


def test_items_are_after_their_own_goal_or_one_of_k_others_each_as_likely() -> None:
    torch.manual_seed(0)
    items, k = 20_000, 3
    spec = make_spec(stack=2, hindsight=k)
    algorithm, batch = make_update(spec, SacConfig(hidden=8)), make_batch(spec, items)
    changed = algorithm.relabelled(batch)
    choices = torch.cat([batch.reward, batch.extras[HINDSIGHT_REWARD]], 1)  # [B, 1 + k]; all differ
    drawn = (changed.reward == choices).long().argmax(1)
    counts = torch.bincount(drawn, minlength=k + 1).double()
    assert ((counts - items / 4).square() / (items / 4)).sum() < 21.1  # chi-square, 3 degrees, p = 1e-4
    desired = batch.observation["desired_goal"]  # [B, W, 3]
    goals = torch.cat([desired[:, :1], batch.extras[HINDSIGHT_GOAL]], 1)[torch.arange(items), drawn]
    other = drawn > 0
    assert torch.equal(changed.observation["desired_goal"][other], goals[other, None].expand(-1, 3, -1)), (
        "in all rows of the window"
    )
    assert torch.equal(changed.observation["desired_goal"][~other], desired[~other])
    assert changed.observation["achieved_goal"] is batch.observation["achieved_goal"]
    assert torch.equal(changed.terminated, batch.terminated) and torch.equal(changed.action, batch.action)


def test_the_loss_is_that_of_the_goals_that_were_drawn() -> None:
    spec = make_spec(hindsight=4)
    algorithm, batch = make_update(spec, SacConfig(hidden=8)), make_batch(spec)
    torch.manual_seed(5)
    priority = algorithm.loss(batch).priority
    torch.manual_seed(5)
    changed = algorithm.relabelled(batch)._replace(extras={})
    assert torch.equal(priority, algorithm.loss(changed).priority)


def test_what_cannot_be_learned_is_refused_in_one_line() -> None:
    with pytest.raises(ValueError, match="actions are discrete: choose dqn or ppo") as refusal:
        make_update(ExperienceSpec(GOALS, Categorical(4), 16), SacConfig())
    assert "\n" not in str(refusal.value)
    with pytest.raises(ValueError, match=r"has an image \(screen\): choose ppo"):
        algorithm_of(SacConfig()).policy(ExperienceSpec((image("screen"), *GOALS), ACTIONS, 16))


def make_observations(count: int, stack: int = 1) -> dict[str, np.ndarray]:
    return {name: rows.numpy() for name, rows in make_observation(GOALS, (count, stack)).items()}


def test_actors_act_by_the_network_that_is_learned_and_follow_its_weights() -> None:
    torch.manual_seed(0)
    spec = make_spec(stack=2)
    policy, observation = Acting(spec, SacConfig(hidden=8), precision="auto"), make_observations(5, stack=2)
    network, newer = policy.network, algorithm_of(SacConfig(hidden=8)).policy(spec)
    for weights in (network.state_dict(), newer.state_dict()):
        load_into(network, {name: value.clone().numpy() for name, value in weights.items()})
        policy.refresh()
        mean, _ = network({name: torch.from_numpy(rows) for name, rows in observation.items()}).chunk(2, 1)
        acted = policy.act(observation, "greedy")
        assert acted.action.dtype == np.float32 and acted.columns == {}
        np.testing.assert_allclose(acted.action, mean.detach().numpy(), rtol=1e-4, atol=1e-6)
