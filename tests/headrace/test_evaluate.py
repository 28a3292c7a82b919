"""Policies measured without a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

import headrace
from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.spec import experience_spec
from deploy.errors import ConfigError
from headrace.policy import Policy
from tests.actors.envs.foreign.batches import HERE
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


@pytest.mark.parametrize("refused", [False, True])
def test_of_a_given_environment_that_of_training_is_not_imported(
    refused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = "hostile_evaluated" if refused else "absent_evaluated"

    def check() -> None:
        if refused:
            raise ConfigError("env.id names code")

    (tmp_path / "hostile_evaluated.py").write_text("import pathlib; pathlib.Path('canary').touch()\n")
    policy = make_policy(EnvConfig(id=f"{name}:make"), Other.observation_space, Other.action_space)
    policy.check_env = check
    figures = headrace.evaluate(policy, Other(), episodes=3)
    assert (figures["episodes"], figures["length_mean"], figures["env"]) == (3, Other.length, "a given environment")
    assert not (tmp_path / "canary").exists()


def test_a_given_environment_is_played_itself_whatever_stepped_those_of_training() -> None:
    class Given(gymnasium.Env):
        """Like the batched one, but an episode is two steps."""

        observation_space, action_space = spaces.Box(0.0, 100.0, (2,), np.float32), spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
            self.steps = 0
            return np.zeros(2, np.float32), {}

        def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
            self.steps += 1
            return np.zeros(2, np.float32), 1.0, self.steps == 2, False, {}

    config = EnvConfig(id=f"{HERE}:Walks-v0", options={"backend": "vector"})
    policy = make_policy(config, Given.observation_space, Given.action_space)
    assert headrace.evaluate(policy, Given(), episodes=2)["length_mean"] == 2


@pytest.mark.parametrize("steps", [1, 3])
def test_an_episode_has_the_limits_of_the_runs_own_evaluations(steps: int) -> None:
    policy = make_policy(EnvConfig(id="plain"), Other.observation_space, Other.action_space)
    policy.evaluator = EvaluatorConfig(max_episode_steps=steps)
    assert Other.length > 3 and headrace.evaluate(policy, Other(), episodes=2)["length_mean"] == steps


def test_the_policy_is_not_seeded_like_the_environment_in_which_it_acts() -> None:
    seeds: list[int | None] = []

    class Given(Other):
        def reset(self, *, seed: int | None = None, **given: Any) -> Any:
            seeds.append(seed)
            return super().reset(seed=seed, **given)

    policy, assigned = make_policy(EnvConfig(id="plain"), Other.observation_space, Other.action_space), list[int]()
    policy.acting.assign = lambda seed, *place: assigned.append(seed)  # type: ignore[method-assign]
    headrace.evaluate(policy, Given(), episodes=1, deterministic=False, seed=5)
    assert len(assigned) == 1 and seeds[0] is not None and assigned[0] not in seeds
