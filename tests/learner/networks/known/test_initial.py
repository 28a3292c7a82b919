"""Known networks begin with weights of the same distributions as torch's modules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.known import INITIAL as DQN
from learner.algorithms.dqn.known import describe_q_network
from learner.algorithms.dqn.networks import q_network
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.known import POLICY_INITIAL, VALUE_INITIAL, describe_policy, describe_value
from learner.algorithms.ppo.networks import actor_critic
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.known import INITIAL as SAC
from learner.algorithms.sac.known import describe_critics, describe_gaussian_policy
from learner.algorithms.sac.networks import gaussian_policy, make_critics
from learner.networks.known.initial import initial
from learner.program.network import Network
from tests.learner.examples import vector, weights_of
from transport.experience import Categorical, Continuous, ExperienceSpec

DISCRETE = ExperienceSpec((vector(size=60),), Categorical(50), 16)
REALS = ExperienceSpec((vector(size=60),), Continuous((-1.0,) * 50, (1.0,) * 50), 16)
NORMED = {"layer_norm": True}
Weights = Mapping[str, np.ndarray]


def of_dqn() -> tuple[Weights, Any]:
    config = DqnConfig(hidden=90, normalize_observation=True, normalize_reward=True, network_options=NORMED)
    description = describe_q_network(DISCRETE, config.body, config.dueling, config.normalize_reward)
    assert description is not None
    return initial(description, DQN, np.random.default_rng(1)), q_network(DISCRETE, config)


def of_ppo() -> tuple[Weights, Any]:
    config = PpoConfig(hidden=90)
    description = describe_policy(REALS, config)
    assert description is not None
    return initial(description, POLICY_INITIAL, np.random.default_rng(1), config.log_std_init), actor_critic(REALS, config)[0]


def of_value() -> tuple[Weights, Any]:
    config = PpoConfig(hidden=90, normalize_reward=True)
    description = describe_value(REALS, config)
    assert description is not None
    return initial(description, VALUE_INITIAL, np.random.default_rng(1)), actor_critic(REALS, config)[1]


def of_sac() -> tuple[Weights, Any]:
    config = SacConfig(hidden=90)
    description = describe_gaussian_policy(REALS, config)
    assert description is not None
    return initial(description, SAC, np.random.default_rng(1)), gaussian_policy(REALS, config, "sac")


def of_critics() -> tuple[Weights, Any]:
    config = SacConfig(hidden=90)
    description = describe_critics(REALS, config)
    assert description is not None
    return initial(description, SAC, np.random.default_rng(1)), make_critics(REALS, config, gaussian_policy(REALS, config, "sac"))


@pytest.mark.parametrize("make", [of_dqn, of_ppo, of_value, of_sac, of_critics])
def test_weights_begin_with_the_distribution_of_the_modules(make: Any) -> None:
    torch.manual_seed(1)
    found, module = make()
    expected = {name: value.numpy() for name, value in module.state_dict().items()}
    assert list(found) == list(expected)
    for name, value in found.items():
        theirs = expected[name]
        assert (value.dtype, value.shape) == (theirs.dtype, theirs.shape), name
        if np.ptp(theirs) == 0:  # a constant
            np.testing.assert_array_equal(value, theirs, name)
            continue
        size = theirs.size
        assert abs(value.mean() - theirs.mean()) < 5 * theirs.std() * np.sqrt(2 / size), name
        assert value.std() == pytest.approx(theirs.std(), rel=5 / np.sqrt(size)), name
        if size > 1_000:  # normal, uniform or of orthogonal rows: the same quantiles
            shares = np.linspace(0.05, 0.95, 10)
            assert np.abs(np.quantile(value, shares) - np.quantile(theirs, shares)).max() < 0.15 * theirs.std(), name


@pytest.mark.parametrize(("make", "last"), [(of_ppo, 0.01), (of_value, 1.0)])
def test_rows_or_columns_are_orthogonal_and_of_the_length_of_the_gain(make: Any, last: float) -> None:
    weights = [value for value in make()[0].values() if value.ndim == 2]
    for value, gain in zip(weights, [np.sqrt(2), np.sqrt(2), last], strict=True):
        narrow = value if len(value) <= value.shape[1] else value.T
        np.testing.assert_allclose(narrow @ narrow.T, gain**2 * np.eye(len(narrow)), atol=1e-5 * gain**2)


def test_no_two_networks_begin_alike_and_each_can_be_repeated() -> None:
    first, again = of_critics()[0], of_critics()[0]
    assert all(np.array_equal(first[name], again[name]) for name in first)
    for value in first.values():
        assert not np.allclose(value[0], value[1])


def test_programs_of_values_and_critics_compute_what_the_modules_compute() -> None:
    spec = ExperienceSpec((vector(size=3), vector("more", 2)), Continuous((-1.0, -1.0), (1.0, 1.0)), 16, 2)
    random = np.random.default_rng(1)
    more = {"width": 7, "apart": True, "layer_norm": True}
    ppo = PpoConfig(normalize_reward=True, normalize_observation=False, network_options=more)
    sac = SacConfig(hidden=9, layer_norm=True)
    value, critics = actor_critic(spec, ppo)[1], make_critics(spec, sac, gaussian_policy(spec, sac, "sac"))
    seen = {name: random.standard_normal((5, size), np.float32) for name, size in (("vector", 6), ("more", 4))}
    inputs = {name: torch.from_numpy(rows) for name, rows in seen.items()}
    action = random.uniform(-1, 1, (5, 2)).astype(np.float32)
    places = {"vector": slice(0, 6), "more": slice(6, 10)}
    rows = np.concatenate(list(seen.values()), 1)
    with torch.no_grad():
        expected = value(inputs, torch.empty(0)), critics.outputs(inputs, torch.from_numpy(action))
    description = describe_value(spec, ppo)
    assert description is not None and description.program is not None
    network = Network(description.program, places, weights_of(value))
    np.testing.assert_allclose(network.forward(rows)[:, 0], expected[0].numpy(), rtol=1e-5, atol=1e-6)
    description = describe_critics(spec, sac)
    assert description is not None and description.program is not None
    network = Network(description.program, places | {"action": slice(10, 12)}, weights_of(critics))
    found = network.forward(np.concatenate([rows, action], 1))
    np.testing.assert_allclose(found, expected[1].numpy(), rtol=1e-5, atol=1e-6)
