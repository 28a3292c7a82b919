"""The options of SAC beside its plain form: bins, normalised layers, a policy that learns at every k-th update."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn.functional import cross_entropy

from learner.algorithms.sac.bins import BINS, DEVIATION, MIDDLES, REACH, TYPICAL
from learner.algorithms.sac.bins import spread as spread_in_numpy
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.losses import loss_of_critics, spread
from learner.config import LearnerConfig
from tests.learner.acting import algorithm_of
from tests.learner.algorithms.sac.test_update import LEARNER, make_batch, make_spec
from tests.learner.examples import make_update

IN_TORCH = torch.from_numpy(MIDDLES.copy())


def test_the_distribution_of_a_target_has_it_as_its_mean_and_three_quarters_of_a_bin_as_its_deviation() -> None:
    target = torch.linspace(-REACH + 1, REACH - 1, 1_001)
    found = spread(target, IN_TORCH)
    assert found.shape == (1_001, BINS)
    torch.testing.assert_close(found.sum(1), torch.ones(1_001))
    torch.testing.assert_close(found @ IN_TORCH, target, rtol=0, atol=4e-5)
    deviation = (found * (IN_TORCH - target[:, None]).square()).sum(1).sqrt()
    torch.testing.assert_close(deviation, torch.full_like(target, DEVIATION), rtol=1e-2, atol=0)


def test_targets_out_of_reach_are_the_outermost_bins() -> None:
    found = spread(torch.tensor([-1e9, 1e9, -REACH, REACH]), IN_TORCH)
    torch.testing.assert_close(found[:2], found[2:])
    assert found.argmax(1).tolist() == [0, BINS - 1, 0, BINS - 1]


def test_torch_and_numpy_spread_alike() -> None:
    target = 1.2 * REACH * torch.randn(1_000, generator=torch.Generator().manual_seed(0)) / 2
    np.testing.assert_allclose(spread(target, IN_TORCH).numpy(), spread_in_numpy(target.numpy()), atol=2e-6)


def test_the_loss_of_bins_is_the_cross_entropy_of_finite_items() -> None:
    logits, target = torch.randn(2, 5, BINS), torch.tensor([1.0, -3.0, torch.inf, 0.0, 20.0])
    kept = [0, 1, 3, 4]
    expected = sum(cross_entropy(each[kept], spread(target[kept], IN_TORCH), reduction="sum") / 5 for each in logits)
    assert loss_of_critics(logits, target, target.isfinite(), IN_TORCH).item() == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("reward", [0.01, 300.0])
def test_a_categorical_critic_learns_values_of_any_size_and_shows_them_in_units_of_the_reward(reward: float) -> None:
    torch.manual_seed(0)
    spec = make_spec()
    config = SacConfig(hidden=32, critic="categorical", layer_norm=True, gamma=0.9)
    update = make_update(spec, config, LearnerConfig(batch_size=32, learning_rate=1e-2, adam_epsilon=1e-8))
    batch = make_batch(spec)._replace(terminated=torch.ones(32, dtype=torch.bool))
    sign = batch.observation["observation"][:, 0, 0].sign()
    batch = batch._replace(reward=reward * sign[:, None])  # the value is the reward
    for _ in range(200):
        metrics, _ = update.update(batch)
    assert float(update.scaling.scale) == pytest.approx(reward / TYPICAL, rel=1e-4)
    assert metrics["td"].item() < 0.1 * reward


def test_the_scale_of_bins_is_what_the_usual_reward_is_worth_until_the_episode_ends() -> None:
    spec = make_spec()
    update = make_update(spec, SacConfig(hidden=8, critic="categorical", gamma=0.9), LEARNER)
    ended = torch.arange(32) < 8
    update.update(make_batch(spec)._replace(reward=torch.full((32, 1), -3.0), terminated=ended))
    assert float(update.scaling.scale) == pytest.approx(3.0 / (1 - 0.9 * 0.75) / TYPICAL, rel=1e-4)


@pytest.mark.parametrize("options", [{}, {"critic": "categorical", "layer_norm": True}])
def test_the_policy_and_the_temperature_learn_at_every_kth_update(options: dict[str, object]) -> None:
    torch.manual_seed(0)
    update = make_update(make_spec(), SacConfig(hidden=8, policy_delay=3, **options), LEARNER)  # type: ignore[arg-type]

    def copies() -> list[torch.Tensor]:
        return [
            torch.cat([each.detach().flatten() for each in module.parameters()]) for module in list(update.modules.values())[:4]
        ]

    changed, shown = [], []
    for _ in range(6):
        before = copies()
        metrics, _ = update.update(make_batch(make_spec()))
        changed.append([not torch.equal(*pair) for pair in zip(before, copies(), strict=True)])
        shown.append("policy_loss" in metrics and "entropy" in metrics)
    assert list(update.modules)[:4] == ["policy", "critics", "target", "temperature"]
    acts = [False, False, True, False, False, True]
    assert changed == [[act, True, True, act] for act in acts] and shown == acts
    steps = {float(value) for name, value in update.optimiser.state().items() if name.endswith("/step")}
    assert steps == {2.0, 6.0}


def test_a_delayed_policy_learns_as_every_policy_from_the_same_batch() -> None:
    moved = []
    for delay in (1, 2):
        torch.manual_seed(0)
        update = make_update(make_spec(), SacConfig(hidden=8, policy_delay=delay), LEARNER)
        before = [each.detach().clone() for each in update.policy.parameters()]
        update.counters["updates"] = 1  # the next one is the second
        torch.manual_seed(1)
        update.update(make_batch(make_spec()))
        moved.append([new - old for new, old in zip(update.policy.parameters(), before, strict=True)])
    torch.testing.assert_close(*moved, rtol=1e-3, atol=1e-5)


def test_rescaled_weights_keep_their_norm_and_change_no_value() -> None:
    torch.manual_seed(0)
    spec = make_spec()
    update = make_update(spec, SacConfig(hidden=16, layer_norm=True, weight_norm=True), LEARNER)
    for _ in range(5):
        update.update(make_batch(spec))
    layers = [
        *update.critics.weights[:-1],
        *(part.weight[None] for part in update.policy.body.torso if hasattr(part, "in_features")),
    ]
    assert len(layers) == 4
    for weight in layers:
        torch.testing.assert_close(weight.flatten(1).norm(dim=1), torch.full((len(weight),), (16 / 3) ** 0.5))
    seen = update.policy.body.preprocess({name: rows[:, :1] for name, rows in make_batch(spec).observation.items()})
    action = torch.rand(32, 2)
    with torch.no_grad():
        before = update.critics(seen, action)
        for weight, bias in zip(update.critics.weights[:-1], update.critics.biases[:-1], strict=True):
            weight *= 3.0
            bias *= 3.0
        torch.testing.assert_close(update.critics(seen, action), before, rtol=1e-3, atol=1e-4)


def test_weights_that_nothing_normalises_are_not_rescaled() -> None:
    with pytest.raises(ValueError, match="add --algorithm.layer-norm true") as refusal:
        algorithm_of(SacConfig(weight_norm=True)).policy(make_spec())
    assert "\n" not in str(refusal.value)
