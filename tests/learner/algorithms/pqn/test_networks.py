"""The Q-network of PQN: what it is made of, what numpy makes of it, and how it acts."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

from learner.algorithms.base import Mode
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.pqn.update import q_network
from learner.networks.describe import describe
from tests.learner.acting import Acting
from tests.learner.examples import image, make_observation, make_spec, vector
from transport.experience import Columns, Continuous, ExperienceSpec

VECTOR = make_spec(vector(), n=4)


def arrays(spec: ExperienceSpec, count: int) -> Columns:
    return {name: rows.numpy() for name, rows in make_observation(spec.fields, (count, spec.stack)).items()}


def test_every_hidden_layer_is_normalised_and_the_last_is_not() -> None:
    network = q_network(VECTOR, PqnConfig(hidden=8, layers=3))
    kinds = [type(module) for module in network.body.torso.modules() if not list(module.children())]
    assert kinds[1:] == [nn.Linear, nn.LayerNorm, nn.ReLU] * 3
    assert isinstance(network.head, nn.Sequential) and [type(module) for module in network.head] == [nn.Linear]
    plain = q_network(VECTOR, PqnConfig(hidden=8, layer_norm=False))
    assert not any(isinstance(module, nn.LayerNorm) for module in plain.modules())


def test_the_torso_for_images_is_normalised_over_channels_and_pixels() -> None:
    spec = make_spec(image(), vector(), stack=2)
    torch.manual_seed(0)
    network = q_network(spec, PqnConfig(hidden=16, normalize_observation=False))
    seen: list[torch.Tensor] = []
    norms = [module for module in network.modules() if isinstance(module, nn.GroupNorm)]
    assert len(norms) == 3 and sum(isinstance(module, nn.LayerNorm) for module in network.modules()) == 1
    for norm in norms:
        norm.register_forward_hook(lambda _, given, answer: seen.append(answer.detach().clone()))
    network(make_observation(spec.fields, (5, 2)))
    for answer in seen:
        torch.testing.assert_close(answer.mean((1, 2, 3)), torch.zeros(5), atol=1e-4, rtol=0)
        torch.testing.assert_close(answer.var((1, 2, 3), correction=0), torch.ones(5), atol=1e-2, rtol=0)


@pytest.mark.parametrize("options", [{}, {"layer_norm": False}, {"network": "linear"}, {"normalize_observation": False}], ids=str)
def test_numpy_answers_what_torch_does(options: dict[str, Any]) -> None:
    spec = make_spec(vector(), vector("other", 3), n=4, stack=2)
    torch.manual_seed(1)
    network = q_network(spec, msgspec.convert({"hidden": 16} | options, PqnConfig))
    network.body.inputs.observe(make_observation(spec.fields, (50,)), torch.arange(50))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    assert describe(network).program is not None, "actors would need torch"
    seen = arrays(spec, 30)
    with torch.no_grad():
        expected = network({name: torch.from_numpy(rows) for name, rows in seen.items()}).numpy()
    np.testing.assert_allclose(Acting(spec, PqnConfig(), network).answers(seen), expected, atol=1e-5)


def test_reals_are_refused_in_one_line() -> None:
    spec = ExperienceSpec((vector(),), Continuous((-1.0,), (1.0,)), 16)
    with pytest.raises(ValueError, match="pqn chooses one of n actions, but this environment's action is a vector of 1 reals"):
        q_network(spec, PqnConfig())


def test_it_acts_by_the_greatest_value_and_by_chance_as_often_as_its_place_says() -> None:
    torch.manual_seed(2)
    network = Pqn(PqnConfig(hidden=8)).policy(VECTOR)
    config, seen = PqnConfig(epsilon_base=0.6, epsilon_power=2.0), arrays(VECTOR, 3)
    policy = Acting(VECTOR, config, network)
    policy.assign(7, 3)
    best = policy.answers(seen).argmax(1)
    assert np.array_equal(policy.act(seen, "greedy").action, best)

    def other_share(mode: Mode) -> np.ndarray:
        return np.mean([policy.policy.act(seen, {}, mode).action != best for _ in range(4_000)], 0)

    chance = np.array([0.6, 0.6**2, 0.6**3])  # of which a quarter chooses the best by chance
    np.testing.assert_allclose(other_share("explore"), 0.75 * chance, atol=0.03)
    np.testing.assert_allclose(other_share("stochastic"), 0.75 * 0.05, atol=0.015)
    np.testing.assert_allclose(other_share("random"), 0.75, atol=0.03)
    acted = policy.act(seen, "explore")
    assert acted.columns == {} and acted.state == {}, "rows keep nothing more"
