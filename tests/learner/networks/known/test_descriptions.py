"""The built-in networks are described without torch as torch's modules are."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import msgspec
import pytest
from torch import nn

from learner.algorithms.base import action_kind, find_algorithm, join, known_description
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.ppo.known import describe_value
from learner.algorithms.ppo.networks import actor_critic
from learner.algorithms.sac.known import describe_critics
from learner.algorithms.sac.networks import make_critics
from learner.networks.base import PolicyModule
from learner.networks.describe import describe
from tests.learner.examples import algorithm_of, image, vector
from transport.experience import ACTION_MASK, Categorical, Column, Continuous, ExperienceSpec, MultiCategorical, observed

DISCRETE, REALS = Categorical(3), Continuous((-1.0, -2.0), (1.0, 3.0))
ACTIONS = (DISCRETE, Categorical(3, masked=True), MultiCategorical((2, 5)), REALS)
VECTORS: Sequence[Sequence[Column]] = (
    (vector(),),
    (vector(), vector("more", 2), observed("bytes", (2, 3), "|u1", 0.5, -1.0)),  # two axes: an image of codes
    (observed("state", (2, 2, 1, 3), "<f4", 2.0), observed("one", (), "<f4")),
    (vector("achieved_goal", 3), vector("desired_goal", 3), vector("observation", 5)),
    (observed("cell", (7,), "|i1"),),
)
IMAGES: Sequence[Sequence[Column]] = (
    (image(shape=(40, 36)), image("other", (1, 36, 50))),
    (image("small", (3, 9, 12)), vector("speed", 2)),
)
NETWORKS: Sequence[tuple[str, dict[str, Any]]] = (
    ("auto", {}),
    ("linear", {}),
    ("mlp", {"width": 5, "layers": 3, "activation": "tanh", "apart": True, "layer_norm": True}),
    ("mlp", {"layers": 0, "apart": False}),
    ("nature", {"width": 9, "apart": True, "layer_norm": True}),
    ("compact", {"filters": 0.3}),
)
OPTIONS: dict[str, Sequence[dict[str, Any]]] = {
    "dqn": ({}, {"dueling": False, "normalize_observation": True, "normalize_reward": True}),
    "pqn": ({"layer_norm": False, "normalize_observation": False}, {"layers": 3}),
    "r2d2": ({"memory": "lstm"}, {"memory": "gru", "memory_width": 3, "dueling": False}),
    "ppo": ({"normalize_observation": False}, {"normalize_reward": True, "layers": 1}, {"memory": "lstm"}, {"memory": "gru"}),
    "reppo": ({"critics": 2, "normalize_observation": False}, {"layers": 3, "layer_norm": False}),
    "sac": ({"normalize_observation": True, "hidden": 7}, {"layers": 3, "layer_norm": True}),
}


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only shapes are compared."""
    for name in ("orthogonal_", "kaiming_normal_", "kaiming_uniform_", "uniform_"):
        monkeypatch.setattr(nn.init, name, lambda tensor, *options, **more: tensor.detach().zero_())


def specs() -> Iterator[ExperienceSpec]:
    for fields, action, stack in product((*VECTORS, *IMAGES), ACTIONS, (1, 3)):
        masked = isinstance(action, Categorical) and action.masked
        yield ExperienceSpec((*fields, *([observed(ACTION_MASK, (3,), "|u1")] if masked else [])), action, 16, stack)


def cases(algorithm: str) -> Iterator[tuple[ExperienceSpec, Any]]:
    found = find_algorithm(algorithm)
    every = 5 if algorithm == "ppo" else 1  # of a thousand; 5 has no factor in common with the number of networks or options
    for env, (network, chosen), more in islice(product(specs(), NETWORKS, OPTIONS[algorithm]), 0, None, every):
        if action_kind(env) in found.actions:
            config = msgspec.convert({"network": network, "network_options": chosen, "hidden": 6, **more}, found.Config)
            yield join(env, found(config).needs(env)), config


def built(make: Any) -> Any:
    """What torch makes; None where it refuses."""
    try:
        return make()
    except ValueError:
        return None


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_a_policy_is_described_as_its_module_is(name: str) -> None:
    compared = refused = 0
    for spec, config in cases(name):
        algorithm = algorithm_of(config)
        policy = built(lambda algorithm=algorithm, spec=spec: algorithm.policy(spec))
        found = known_description(algorithm, spec)
        if policy is None:
            assert found is None, (spec, config)
            refused += 1
            continue
        expected = describe(policy)
        assert found is not None, (spec, config)
        assert (found, list(found.tensors)) == (expected, list(expected.tensors)), (spec, config)
        compared += 1
    assert compared > 100 and refused > 0


def test_a_value_function_has_the_tensors_of_its_module_and_the_parts_of_its_policy() -> None:
    compared = 0
    for spec, config in cases("ppo"):
        assert isinstance(config, PpoConfig)
        made = built(lambda spec=spec, config=config: actor_critic(spec, config))
        found = describe_value(spec, config)
        if made is None or made[1].torso is None:
            assert found is None
            continue
        policy, value = made
        assert found is not None and found.program is not None
        assert list(found.tensors.items()) == list(shapes(value).items())
        steps = [(op.kind, op.options) for op in describe(policy).program or ()]
        last = [("rescale", {})] if config.normalize_reward else []
        own = [(op.kind, op.options) for op in found.program]
        assert own == [each for each in steps[1:] if each[0] != "log_std"] + last
        assert {name for op in found.program for name in op.tensors} == found.tensors.keys()
        compared += 1
    assert compared > 50


@pytest.mark.parametrize("name", ["reppo", "sac"])
def test_critics_have_the_tensors_of_their_module(name: str) -> None:
    compared = 0
    for spec, config in cases(name):
        algorithm = algorithm_of(config)
        policy = built(lambda algorithm=algorithm, spec=spec: algorithm.policy(spec))
        found = describe_critics(spec, config)
        critics = None if policy is None else make_critics(spec, config, policy)
        if critics is None or len(critics.torsos):
            assert found is None
            continue
        assert found is not None and found.program is not None
        assert list(found.tensors.items()) == list(shapes(critics).items())
        assert {name for op in found.program for name in op.tensors} == found.tensors.keys()
        assert found.program[0].options["names"] == [*policy.body.inputs.shapes, "action"]
        compared += 1
    assert compared > 20


def shapes(module: Any) -> dict[str, tuple[tuple[int, ...], str]]:
    return {name: (tuple(value.shape), "float32") for name, value in module.state_dict().items()}


@pytest.mark.parametrize(
    ("network", "options"),
    [
        ("nature_batchnorm", {}),
        ("nature", {"batch_norm": True}),
        ("tests.learner.networks.own:Torso", {}),
        ("nowhere", {}),
        ("mlp", {"depth": 3}),
        ("mlp", {"width": "wide"}),
        ("mlp", {"width": 0}),
        ("nature", {"filters": 0.0}),
    ],
)
def test_what_is_unknown_or_refused_is_left_to_torch(network: str, options: dict[str, Any]) -> None:
    config = DqnConfig(network=network, network_options=options)
    assert known_description(Dqn(config), ExperienceSpec((image(),), DISCRETE, 16)) is None


class OtherNetwork(Dqn):
    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        return super().policy(spec)


class OtherOptions(Dqn):
    Config = DqnConfig


def test_an_algorithm_with_a_network_of_its_own_is_not_described_as_the_one_that_it_is_derived_from() -> None:
    spec = ExperienceSpec((vector(),), DISCRETE, 16)
    assert known_description(OtherNetwork(DqnConfig()), spec) is None
    assert known_description(OtherOptions(DqnConfig()), spec) == known_description(Dqn(DqnConfig()), spec) is not None


def test_describing_imports_no_torch() -> None:
    program = """
import sys
from learner.algorithms.base import find_algorithm, join, known_description
from transport.experience import Categorical, Continuous, ExperienceSpec, observed
for name in ("dqn", "ppo", "pqn", "r2d2", "reppo", "sac"):
    found = find_algorithm(name)
    action = Categorical(3) if "categorical" in found.actions else Continuous((-1.0,), (1.0,))
    algorithm = found(found.Config())
    env = ExperienceSpec((observed("vector", (4,), "<f4"),), action, 16)
    assert known_description(algorithm, join(env, algorithm.needs(env))).program
assert "torch" not in sys.modules
"""
    assert subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr == ""


def test_a_shared_value_function_reads_the_features_of_its_policys_torso() -> None:
    compared = 0
    for spec, config in cases("ppo"):
        assert isinstance(config, PpoConfig)
        config = msgspec.structs.replace(config, shared=True)
        made = built(lambda spec=spec, config=config: actor_critic(spec, config))
        found = describe_value(spec, config)
        if made is None or made[0].body.inputs.images or config.memory:
            assert found is None
            continue
        policy, value = made
        assert found is not None and found.program is not None
        assert list(found.tensors.items()) == list(shapes(value).items())
        assert [op.kind for op in found.program] == ["push", "linear"] + ["rescale"] * config.normalize_reward
        assert found.tensors["head.weight"][0] == (1, policy.body.features)
        compared += 1
    assert compared > 50
