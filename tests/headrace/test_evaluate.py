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


@pytest.mark.parametrize(
    ("observation", "action", "words"),
    [
        (spaces.Discrete(4), spaces.Discrete(3), "the policy was trained with observations Discrete(4); this environment has"),
        (spaces.Discrete(5), spaces.Discrete(2), "the policy was trained with actions Discrete(2); this environment has"),
    ],
)
def test_another_number_of_choices_is_another_environment(observation: spaces.Space, action: spaces.Space, words: str) -> None:
    policy = make_policy(EnvConfig(id="plain"), observation, action)
    with pytest.raises(headrace.ConfigurationError) as refusal:
        headrace.evaluate(policy, Other(), episodes=1)
    assert words in str(refusal.value)


def test_an_environment_that_cannot_be_made_is_a_configuration_error() -> None:
    policy = make_policy(EnvConfig(id="plain"), Other.observation_space, Other.action_space)
    with pytest.raises(headrace.ConfigurationError, match="did you mean CartPole-v1"):
        headrace.evaluate(policy, "CartPol-v1", episodes=1)
