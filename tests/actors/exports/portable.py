"""Policies with random weights, of any spaces, algorithm and network."""

from __future__ import annotations

import json
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.config import EnvConfig
from actors.envs.spaces import describe_space
from actors.envs.spec import experience_spec
from actors.exports.policy import PortablePolicy
from learner.algorithms.base import Algorithm, make_algorithm, read_algorithm
from learner.description import PolicyDescription
from learner.networks.describe import describe
from learner.weights.checkpoint import Weights, write
from transport.experience import ExperienceSpec, write_spec


class Goals(gymnasium.Env):
    """Has the spaces of a goal environment."""

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return np.zeros(len(achieved))


def portable(
    observation: spaces.Space[Any], action: spaces.Space[Any], algorithm: dict[str, Any], seed: int = 0, **env: Any
) -> PortablePolicy:
    world = Goals()
    world.observation_space, world.action_space = observation, action
    config = EnvConfig(id="toy", **env)
    made = make_algorithm(read_algorithm(algorithm))
    spec = experience_spec(world, config, "none", made.needs(experience_spec(world, config, "none")))
    description, weights = random_weights(made, spec, seed)
    metadata = {
        "config": json.dumps({"env": {"id": "toy", **env}, "algorithm": algorithm}),
        "spec": write_spec(spec).decode(),
        "spaces": json.dumps({"observation": describe_space(observation), "action": describe_space(action)}),
        "policy": json.dumps(_builtins(description)),
        "spec_digest": spec.digest,
        "env": "toy",
        "algorithm": algorithm["name"],
        "policy_version": "3",
    }
    return PortablePolicy(spec, description, weights, observation, action, metadata)


def random_weights(algorithm: Algorithm, spec: ExperienceSpec, seed: int) -> tuple[PolicyDescription, Weights]:
    """Of torch's initialisation, moved by noise; statistics of inputs as of seen ones."""
    import torch

    torch.manual_seed(seed)
    module = algorithm.policy(spec)
    random = np.random.default_rng(seed)
    weights = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    for name, values in weights.items():
        if name.endswith("normaliser.count"):
            values[...] = 100
        elif name.endswith(("variance", "running_var")):
            values[...] = random.uniform(0.3, 3, values.shape)
        elif values.dtype == np.float32:
            values += random.normal(0, 0.1, values.shape).astype(np.float32)
    return describe(module), weights


def _builtins(description: PolicyDescription) -> Any:
    import msgspec

    return msgspec.to_builtins(description)


def save(policy: PortablePolicy, path: Any) -> None:
    """Writes what `headrace export` would."""
    write(path, policy.weights, policy.metadata)
