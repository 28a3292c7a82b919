"""Values of info that a run measures: `--env.info-keywords`, from the environment to the names that sinks get."""

from __future__ import annotations

from typing import Any

import gymnasium
import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from actors.actor import describe
from actors.config import EnvConfig
from actors.envs.vector import VectorEnv
from actors.episodes import Episode, info_means
from actors.evaluation.summary import describe as describe_evaluation
from actors.evaluation.summary import figures_of
from deploy.cli.main import main
from deploy.reporting.figures import tags
from tests.actors import playing
from tests.actors.envs.foreign.batches import LENGTH

HERE = __name__


class Thrower(gymnasium.Env):
    """Episodes of two steps; info says how far the ball is, and much that is no number."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.metres = 0
        return np.zeros(2, np.float32), {"distance": -1.0}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.metres += 10
        numbers = {"distance": np.float32(self.metres), "caught": np.bool_(True), "nan": float("nan"), "huge": 10**400}
        info = numbers | {"word": "far"}
        return np.zeros(2, np.float32), 1.0, self.metres == 20, False, info


def vector(env_id: str, keys: tuple[str, ...], **more: Any) -> VectorEnv:
    return playing.vector({"id": env_id, "info_keywords": keys} | more, 2)


def played(env: VectorEnv, steps: int) -> list[Episode]:
    env.reset()
    return [episode for _ in range(steps) for episode in env.step(np.zeros(2, np.int64)).episodes]


def test_the_last_value_of_each_episode_counts_and_what_is_no_number_is_named() -> None:
    env = vector(f"{HERE}:Thrower", ("distance", "caught", "word", "nan", "huge", "absent"))
    assert [episode.info for episode in played(env, 2)] == [{"distance": 20.0, "caught": 1.0}] * 2
    assert env.unknown_info == {"word", "nan", "huge", "absent"}
    assert [episode.info for episode in played(vector(f"{HERE}:Thrower", ()), 2)] == [{}] * 2


class Shares(Thrower):
    """All of them write into one dict."""

    shared: dict[str, Any] = {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.shared.update(distance=float(action), score=float(action), is_success=bool(action))
        return *super().step(action)[:4], self.shared


def test_a_dict_that_environments_share_gives_each_its_own() -> None:
    env = vector(f"{HERE}:Shares", ("distance",))
    env.reset()
    episodes = [episode for _ in range(2) for episode in env.step(np.arange(2)).episodes]
    assert [(each.info["distance"], each.score, each.success) for each in episodes] == [(0.0, 0.0, False), (1.0, 1.0, True)]


@pytest.mark.parametrize("backend", ["gymnasium", "vector"])
def test_many_environments_in_one_call_give_theirs(backend: str) -> None:
    env = vector("tests.actors.envs.foreign.batches:Walks-v0", ("is_success",), backend=backend)
    assert [episode.info for episode in played(env, LENGTH)] == [{"is_success": 1.0}] * 2 and not env.unknown_info


def test_figures_have_their_means_under_names_of_their_own() -> None:
    episodes = [Episode(0, 1.0, 5, 1.0, None, info={"distance": 1.0}), Episode(1, 1.0, 5, 1.0, None, info={"distance": 2.0})]
    assert info_means([*episodes, Episode(0, 1.0, 5, 1.0, None)]) == {"distance": 1.5}
    figures = figures_of(vector(f"{HERE}:Thrower", ("distance",)), episodes)
    assert figures["info"] == {"distance": 1.5}
    about = {"run": "night", "env": "x", "algorithm": "dqn", "policy_version": 3, "stochastic": False}
    assert "  distance 1.5 on average" in describe_evaluation(figures | about).splitlines()
    record = {"episode_return": 1.0, "info/distance": 20.0}
    assert "· distance 20 · policy" in describe(record)
    written = tags({0: record, 1: {"info/distance": 30.0}}, {}, {}, {"info/distance": 7.0}, 1.0)
    assert written["rollout/info/distance"] == 25.0 and written["eval/info/distance"] == 7.0


@pytest.mark.parametrize("key", ["", "two words", "a" * 41, "a/b"])
def test_a_key_that_cannot_be_a_name_is_refused_in_one_line(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert({"info_keywords": [key]}, EnvConfig)
    if key:
        assert main(["up", "--env", "CartPole-v1", "--env.info-keywords", key]) == 2
        assert "info_keywords" in capsys.readouterr().err.replace("-", "_")
