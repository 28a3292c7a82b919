"""How an actor-critic acts on arrays, against the network that it is."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.base import Mode
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.networks import actor_critic, log_prob_entropy
from learner.devices import capabilities as devices
from learner.networks.base import PolicyModule
from learner.weights.checkpoint import load_into
from tests.learner.acting import Acting
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec, MultiCategorical, observed

REALS = Continuous((-1.0, 0.0), (1.0, 3.0))
QUANTISED = observed("angle", (3,), "|u1", 0.02, -2.5)
GOAL = (vector("observation", 5), vector("achieved_goal", 3), vector("desired_goal", 3))
FIELDS = {"goal": GOAL, "quantised": (vector(), QUANTISED), "image": (image(shape=(13, 13)), vector())}


def made(spec: ExperienceSpec, seed: int = 1, statistics: bool = True, **options: Any) -> PolicyModule:
    torch.manual_seed(seed)
    network, _ = actor_critic(spec, msgspec.convert({"hidden": 16} | options, PpoConfig))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    if statistics:
        rows = {name: 3 * values for name, values in make_observation(spec.fields, (50,)).items()}
        network.body.inputs.observe(rows, torch.arange(50))
    return network


def arrays(spec: ExperienceSpec, count: int) -> Columns:
    return {name: rows.numpy() for name, rows in make_observation(spec.fields, (count, spec.stack)).items()}


def tensors(columns: Columns) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(rows) for name, rows in columns.items()}


@pytest.mark.parametrize("options", [{}, {"normalize_observation": False}, {"layers": 1}, {"statistics": False}], ids=str)
@pytest.mark.parametrize(
    "action", [Categorical(5), MultiCategorical((2, 3, 2)), REALS], ids=["categorical", "several", "continuous"]
)
@pytest.mark.parametrize("name", FIELDS)
def test_its_greedy_action_and_log_probabilities_are_the_networks(
    name: str, action: Categorical | MultiCategorical | Continuous, options: dict[str, Any]
) -> None:
    spec = ExperienceSpec(FIELDS[name], action, 16, 3)
    network = made(spec, **options)
    policy, seen = Acting(spec, PpoConfig(), network), arrays(spec, 40)
    seen["vector" if "vector" in seen else "observation"][0] *= 30  # beyond where normalised inputs are cut off
    before = {name: rows.copy() for name, rows in seen.items()}
    with torch.no_grad():
        answer = network(tensors(seen))
        greedy = policy.act(seen, "greedy")
        if isinstance(action, Categorical):
            assert np.array_equal(greedy.action, answer.argmax(1)) and greedy.action.dtype == np.int64
        elif isinstance(action, MultiCategorical):
            assert np.array_equal(greedy.action, torch.stack([part.argmax(1) for part in answer.split(action.sizes, 1)], 1))
        else:
            np.testing.assert_allclose(greedy.action, answer.chunk(2, 1)[0], atol=1e-5)
            assert greedy.action.dtype == np.float32
        sizes = action.sizes if isinstance(action, MultiCategorical) else ()
        for acted in (greedy, policy.act(seen, "explore")):
            expected, _ = log_prob_entropy(answer, torch.from_numpy(acted.action), sizes)
            np.testing.assert_allclose(acted.columns[LOG_PROB], expected, atol=1e-5)
            assert acted.columns[LOG_PROB].dtype == np.float32 and set(acted.columns) == {LOG_PROB}
    assert all(np.array_equal(rows, before[name]) for name, rows in seen.items()), "what was observed is not its to change"


def test_it_draws_each_action_as_often_as_it_is_likely_and_never_an_impossible_one() -> None:
    spec = make_spec(vector(), n=4)
    network = made(spec, statistics=False)
    with torch.no_grad():
        weight, bias = list(network.head.parameters())[-2:]
        weight.zero_()
        bias.copy_(torch.tensor([-1e9, 0.0, math.log(3), -1e9]))
    policy, seen = Acting(spec, PpoConfig(), network), arrays(spec, 8_000)
    policy.assign(3)
    acted = policy.act(seen, "explore")
    assert np.bincount(acted.action, minlength=4).tolist() == pytest.approx([0, 2_000, 6_000, 0], abs=150)
    policy.assign(3)
    assert np.array_equal(policy.act(seen, "explore").action, acted.action)
    assert not np.array_equal(policy.act(seen, "explore").action, acted.action)
    anything = policy.act(seen, "random")
    assert np.bincount(anything.action).tolist() == pytest.approx([2_000] * 4, abs=150)
    np.testing.assert_allclose(anything.columns[LOG_PROB], math.log(1 / 4), rtol=1e-6)


def test_it_draws_each_of_several_choices_as_often_as_it_is_likely() -> None:
    spec = ExperienceSpec((vector(),), MultiCategorical((2, 4, 3)), 16)
    network = made(spec, statistics=False)
    shares = np.array([0.25, 0.75, 0.1, 0.2, 0.3, 0.4, 0.5, 0.0, 0.5])
    with torch.no_grad():
        weight, bias = list(network.head.parameters())[-2:]
        weight.zero_()
        bias.copy_(torch.from_numpy(np.log(np.maximum(shares, 1e-30))))
    policy, seen = Acting(spec, PpoConfig(), network), arrays(spec, 8_000)
    policy.assign(3)
    for mode, expected in ("explore", shares), ("random", np.repeat([1 / 2, 1 / 4, 1 / 3], [2, 4, 3])):
        acted = policy.act(seen, mode)
        drawn = np.concatenate([np.bincount(each, minlength=n) for each, n in zip(acted.action.T, (2, 4, 3), strict=True)])
        assert drawn.tolist() == pytest.approx((8_000 * expected).tolist(), abs=200)
        chances = [each[choice] for each, choice in zip(np.split(expected, [2, 6]), acted.action.T, strict=True)]
        np.testing.assert_allclose(acted.columns[LOG_PROB], np.log(np.prod(chances, 0)), rtol=1e-4)


def test_it_draws_reals_from_the_gaussian_and_at_random_fills_the_bounds_evenly() -> None:
    spec = ExperienceSpec((vector(),), REALS, 16)
    network = made(spec, log_std_init=-1.0)
    policy, seen = Acting(spec, PpoConfig(), network), {"vector": np.ones((8_000, 1, 4), np.float32)}
    policy.assign(3)
    log_std = network(tensors(seen))[0, 2:].detach()
    drawn, mean = policy.act(seen, "explore").action, policy.act(seen, "greedy").action
    np.testing.assert_allclose((drawn - mean).std(0), log_std.exp(), rtol=0.03)
    np.testing.assert_allclose((drawn - mean).mean(0), 0, atol=0.02)
    anything = policy.act(seen, "random")
    bounded = REALS.bounded(anything.action)
    for column, (low, high) in zip(bounded.T, [(-1, 1), (0, 3)], strict=True):
        share, _ = np.histogram(column, 4, (low, high))
        assert share.tolist() == pytest.approx([2_000] * 4, abs=150)
    assert np.isfinite(anything.action).all()
    # The density of the tanh, 1/2 in each of two dimensions: what log-probabilities are of.
    np.testing.assert_allclose(anything.columns[LOG_PROB], math.log(1 / 4), atol=1e-4)


@pytest.mark.parametrize("mode", ["explore", "stochastic"])
def test_noise_is_correlated_where_it_is_to_be_and_the_log_probability_is_that_of_each_action_alone(mode: Mode) -> None:
    spec = ExperienceSpec((vector(),), REALS, 16)
    network = made(spec, log_std_init=-1.0)
    policy, seen = Acting(spec, PpoConfig(noise_exponent=1.0), network), {"vector": np.ones((4, 1, 4), np.float32)}
    policy.assign(3, 4)
    acted = [policy.act(seen, mode) for _ in range(3_000)]
    with torch.no_grad():
        answer = network(tensors(seen))
        expected, _ = log_prob_entropy(answer, torch.from_numpy(acted[0].action))
    np.testing.assert_allclose(acted[0].columns[LOG_PROB], expected, atol=1e-5)
    noise = (np.stack([one.action for one in acted]) - answer[:, :2].numpy()) / answer[:, 2:].exp().numpy()  # [T, K, A]
    assert noise.std() == pytest.approx(1.0, rel=0.1)
    together = (noise[:-10] * noise[10:]).mean()
    assert together > 0.2 if mode == "explore" else abs(together) < 0.05


def test_in_bfloat16_it_tells_the_probability_with_which_it_acted_and_auto_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "_multiplies_bfloat16", lambda: True)
    spec = make_spec(image(), vector(), stack=4)
    network, newer = made(spec, hidden=64), made(spec, seed=2, hidden=64)
    seen = arrays(spec, 6)
    policy, exact, auto = (Acting(spec, PpoConfig(), network, kind) for kind in ("bfloat16", "float32", "auto"))
    load_into(network, {name: value.numpy() for name, value in newer.state_dict().items()})
    expected, stale = exact.answers(seen), policy.answers(seen)
    assert np.array_equal(auto.answers(seen), expected)
    policy.refresh()
    found = policy.answers(seen)
    assert found.dtype == np.float32 and not np.array_equal(found, expected), "it did not act in bfloat16"
    spread = np.abs(expected).max()
    np.testing.assert_allclose(found, expected, atol=0.03 * spread)
    assert not np.allclose(stale, expected, atol=0.03 * spread)
    acted = policy.act(seen, "explore")
    own = torch.log_softmax(torch.from_numpy(found), 1).numpy()[np.arange(6), acted.action]
    np.testing.assert_allclose(acted.columns[LOG_PROB], own, atol=1e-6)
