from __future__ import annotations

from typing import Literal

import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic.copies import copy_into
from learner.algorithms.arithmetic.transitions import transition
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.config import LearnerConfig
from learner.engine.transitions import STATISTICS_INTERVAL
from learner.updates.base import Transitions
from tests.learner.examples import gradients, image, make_batch, make_spec, make_update, vector


def huber(error: float) -> float:
    return 0.5 * error * error if abs(error) <= 1 else abs(error) - 0.5


@pytest.mark.parametrize(("double", "scale"), [(True, 1.0), (False, 1.0), (True, 0.1)])
def test_the_loss_equals_a_loop_over_the_items(double: bool, scale: float) -> None:
    torch.manual_seed(0)
    spec = make_spec(vector(), image(shape=(6, 6)), n=4, stack=2, n_step=3)
    dqn = make_update(spec, DqnConfig(hidden=16, double=double, gamma=0.9, reward_scale=scale))
    for parameter in dqn.target.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.1)
    batch = make_batch(spec, 12)
    weight = torch.rand(12)
    loss, metrics, priorities = dqn.loss(Weighted(batch, weight))

    step = transition(batch, 0.9)
    with torch.no_grad():
        q, online, target = dqn.policy(step.observation), dqn.policy(step.next_observation), dqn.target(step.next_observation)
    total = 0.0
    for item in range(12):
        goal = sum(0.9**k * scale * float(batch.reward[item, k]) for k in range(int(batch.steps[item])))
        if not batch.terminated[item]:
            best = int((online if double else target)[item].argmax())
            goal += 0.9 ** int(batch.steps[item]) * float(target[item, best])
        td = goal - float(q[item, batch.action[item]])
        total += float(weight[item]) * huber(td) / 12
        assert float(priorities[item]) == pytest.approx(abs(td), abs=1e-4)
    assert float(loss.detach()) == pytest.approx(total, abs=1e-4)
    assert float(metrics["loss"]) == float(loss.detach())
    assert float(metrics["td"]) == pytest.approx(float(priorities.mean()), abs=1e-5)


@pytest.mark.parametrize("network", ["mlp", "tests.learner.networks.own:known"])
def test_with_normalised_rewards_the_loss_is_that_of_scaled_errors_and_the_priorities_are_not_scaled(network: str) -> None:
    torch.manual_seed(0)
    spec = make_spec(vector(), n=4, n_step=3)
    dqn = make_update(spec, DqnConfig(hidden=16, gamma=0.9, network=network, normalize_reward=True))
    large = make_batch(spec, 64)
    dqn.update(large._replace(reward=1e4 * large.reward))
    scale = float(dqn.scaling.scale)
    assert scale > 30.0
    batch, weight = make_batch(spec, 12), torch.rand(12)
    loss, _, priorities = dqn.loss(Weighted(batch, weight))
    with torch.no_grad():
        step = transition(batch, 0.9)
        q = dqn.policy(step.observation).gather(1, batch.action[:, None])[:, 0]
        best = dqn.policy(step.next_observation).argmax(1, keepdim=True)
        target = step.return_ + step.discount * dqn.target(step.next_observation).gather(1, best)[:, 0]
    torch.testing.assert_close(priorities, (target - q).abs(), rtol=1e-4, atol=1e-5)
    expected = sum(float(w) * huber(float(td) / scale) for w, td in zip(weight, target - q, strict=True)) / 12
    assert float(loss.detach()) == pytest.approx(expected, rel=1e-4)


def test_normalised_rewards_of_any_size_teach_the_same() -> None:
    """Q-values grow with the rewards, weights do not, but for the first update, which has no scale yet. Rewards of the size of
    most tasks are left as they are."""
    spec = make_spec(vector(), n_step=2)
    values = []
    for size in (1e3, 1e-5, 1e6):
        torch.manual_seed(0)
        learner = LearnerConfig(batch_size=64, learning_rate=1e-3, adam_epsilon=1e-8)
        dqn = make_update(spec, DqnConfig(hidden=16, normalize_reward=True, target_update_interval=20), learner)
        batches = [make_batch(spec, 64) for _ in range(200)]
        for batch in batches:
            dqn.update(batch._replace(reward=size * (batch.reward + 1)))
        with torch.no_grad():
            values.append(dqn.policy(transition(batches[0], 0.9).observation) / size)
    assert float(values[0].mean()) > 2, "it has learned nothing"
    for other in values[1:]:
        assert float((other - values[0]).abs().mean()) < 0.1 * float(values[0].mean())


def test_both_networks_have_the_same_statistics_and_scale_between_two_copies() -> None:
    spec = make_spec(vector(), n_step=3)
    options = DqnConfig(hidden=16, normalize_observation=True, normalize_reward=True, target_update_interval=1_000)
    dqn = make_update(spec, options)
    for _ in range(3 * STATISTICS_INTERVAL):
        dqn.update(make_batch(spec, 32))
        for name, value in dqn.policy.state_dict().items():
            if "normaliser" in name or "scale" in name:
                assert torch.equal(value, dqn.target.state_dict()[name]), name
            else:
                assert not torch.equal(value, dqn.target.state_dict()[name]), name
    assert float(dqn.policy.body.inputs.normaliser.count) == 3 * 32
    observation = transition(make_batch(spec, 32), 0.9).observation
    before = dqn.target(observation)
    dqn.scaling.observe(torch.tensor(1e4), torch.tensor(1.0))
    torch.testing.assert_close(dqn.target(observation), before)


def test_statistics_are_of_the_items_as_if_each_were_drawn_as_often() -> None:
    spec = make_spec(vector(), image(shape=(6, 6)), n_step=3, stack=2)
    dqn = make_update(spec, DqnConfig(hidden=16, normalize_observation=True))
    batch = make_batch(spec, 64)
    dqn.update(batch)
    rows = batch.observation["vector"][torch.arange(64), batch.observation_index[:, -1]].numpy()
    mean = np.average(rows, 0, 1 / batch.probability.numpy())
    np.testing.assert_allclose(dqn.policy.body.inputs.normaliser.mean, mean, rtol=1e-4, atol=1e-5)
    for _ in range(STATISTICS_INTERVAL):
        dqn.update(batch)
    assert float(dqn.policy.body.inputs.normaliser.count) == 128


@pytest.mark.parametrize("reward", [float("nan"), float("inf")])
def test_an_item_with_a_reward_that_is_not_finite_teaches_nothing_and_is_reported(reward: float) -> None:
    spec = make_spec(vector())
    dqn = make_update(spec, DqnConfig(hidden=16))
    batch = make_batch(spec, 4)
    broken = batch.reward.clone()
    broken[1] = reward
    loss, metrics, priorities = dqn.loss(Weighted(batch._replace(reward=broken), torch.ones(4)))
    without, _, expected = dqn.loss(Weighted(batch, torch.tensor([1.0, 0.0, 1.0, 1.0])))
    torch.testing.assert_close(gradients(loss, list(dqn.policy.parameters())), gradients(without, list(dqn.policy.parameters())))
    expected[1] = 0.0
    torch.testing.assert_close(priorities, expected)
    assert float(metrics["ignored"]) == 0.25


def test_the_target_network_is_copied_every_period_and_gets_no_gradient() -> None:
    spec = make_spec(image(shape=(40, 40)))
    dqn = make_update(
        spec, DqnConfig(hidden=8, network="nature_batchnorm", target_update_interval=3), LearnerConfig(batch_size=4)
    )

    def same() -> bool:
        online = dqn.policy.state_dict()
        return all(torch.equal(value, online[name]) for name, value in dqn.target.state_dict().items())

    history = []
    for _ in range(6):
        dqn.update(make_batch(spec, 4))
        history.append(same())
    assert history == [False, False, True, False, False, True]
    assert not any(parameter.requires_grad for parameter in dqn.target.parameters())


def test_learning_moves_batch_statistics_once_per_pass_and_valuing_does_not() -> None:
    spec = make_spec(image(shape=(40, 40)))
    learner = LearnerConfig(batch_size=8, accumulation=2)
    dqn = make_update(spec, DqnConfig(hidden=8, network="nature_batchnorm"), learner)
    dqn.update(make_batch(spec, 8))
    assert int(dqn.policy.state_dict()["body.torso.0.branches.0.1.num_batches_tracked"]) == 2
    assert int(dqn.target.state_dict()["body.torso.0.branches.0.1.num_batches_tracked"]) == 0
    assert dqn.policy.training and not dqn.target.training


def test_valuing_does_not_move_the_batch_statistics_of_a_torso_of_ones_own_either() -> None:
    network = "tests.learner.networks.own:normalising"
    dqn = make_update(make_spec(vector()), DqnConfig(network=network), LearnerConfig(batch_size=8))
    dqn.update(make_batch(dqn.spec, 8))
    assert int(dqn.policy.state_dict()["body.torso.1.num_batches_tracked"]) == 1


def test_loaded_weights_reach_the_target_when_it_is_synchronised() -> None:
    spec = make_spec(vector())
    first, second = (make_update(spec, DqnConfig(hidden=8)) for _ in range(2))
    second.policy.load_state_dict(first.policy.state_dict())
    copy_into(second.target, second.policy)
    items = Weighted(make_batch(spec, 4), torch.ones(4))
    assert torch.equal(first.loss(items).value.detach(), second.loss(items).value.detach())


@pytest.mark.parametrize("network", ["mlp", "nature_batchnorm"])
def test_a_bandit_whose_best_arm_is_shown_is_solved(network: Literal["mlp", "nature_batchnorm"]) -> None:
    """The observation shows which of four arms pays 1; all others pay 0. One step, then the episode terminates."""
    torch.manual_seed(0)
    arms = 4
    field = image(shape=(6, 6)) if network == "nature_batchnorm" else vector(size=arms)
    spec = make_spec(field, n=arms)
    learner = LearnerConfig(batch_size=64, learning_rate=1e-3)
    dqn = make_update(spec, DqnConfig(hidden=64, network=network, target_update_interval=10), learner)

    def show(paying: torch.Tensor) -> torch.Tensor:
        """[B] -> [B, rows 2, *shape]: both rows show it."""
        hot = torch.nn.functional.one_hot(paying, arms).float()
        if network == "nature_batchnorm":
            hot = (hot * 255).to(torch.uint8)[:, :, None].expand(-1, -1, 9).reshape(-1, 6, 6)
        return hot[:, None].repeat_interleave(2, 1)

    for _ in range(150):
        paying, action = torch.randint(arms, (64,)), torch.randint(arms, (64,))
        index = torch.zeros(64, 1, dtype=torch.int64)
        dqn.update(
            Transitions(
                observation={field.name: show(paying)},
                observation_index=index,
                next_index=index + 1,
                action=action,
                reward=(action == paying).float()[:, None],
                steps=torch.ones(64, dtype=torch.int64),
                terminated=torch.ones(64, dtype=torch.bool),
                probability=torch.full((64,), 1e-3),
                extras={},
            )
        )
    paying = torch.arange(arms)
    q = dqn.policy.eval()({field.name: show(paying)[:, :1]})
    assert torch.equal(q.argmax(1), paying)
    assert q.amax(1).tolist() == pytest.approx([1.0] * arms, abs=0.2)


def test_actors_get_the_average_of_the_weights_with_the_statistics_and_the_scale_of_the_newest() -> None:
    torch.manual_seed(5)
    spec = make_spec(vector(), n=3)
    config = DqnConfig(hidden=8, average_updates=1_000, normalize_observation=True, normalize_reward=True)
    dqn = make_update(spec, config, LearnerConfig(batch_size=8, learning_rate=0.05))
    published, online = dqn.modules["policy"], dqn.modules["online"]
    for _ in range(200):
        dqn.update(make_batch(spec, 8))
    assert published.body.inputs is online.body.inputs and published.head[-1] is online.head[-1]
    far = [
        float((own - newest).detach().abs().max())
        for own, newest in zip(published.parameters(), online.parameters(), strict=True)
    ]
    assert max(far) > 0
    assert not any(parameter.requires_grad for parameter in published.parameters())
