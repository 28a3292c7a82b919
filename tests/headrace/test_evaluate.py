"""Policies measured without a run."""

from __future__ import annotations

import msgspec
import pytest
from gymnasium import spaces

import headrace
from actors.config import EnvConfig
from actors.envs.spec import experience_spec
from headrace.policy import Policy
from tests.actors.toy_envs import Seen
from tests.headrace.test_policy import Plain, Summing


def make_policy(config: EnvConfig, observation: spaces.Space, action: spaces.Space) -> Policy:
    spec = experience_spec(Plain(observation, action), msgspec.structs.replace(config, id="plain", options=None), "none")
    return Policy(spec, Summing(spec), config, (observation, action), {"algorithm": "sum"})


class Other(Seen):
    """Three actions, and an observation of five choices."""

    observation_space, action_space = spaces.Discrete(5), spaces.Discrete(3)


def test_an_environment_that_cannot_be_made_is_a_configuration_error() -> None:
    policy = make_policy(EnvConfig(id="plain"), Other.observation_space, Other.action_space)
    with pytest.raises(headrace.ConfigurationError, match="did you mean CartPole-v1"):
        headrace.evaluate(policy, "CartPol-v1", episodes=1)
