"""Gymnasium's vector API: `--env.backend vector`."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.foreign import options
from actors.envs.make import env_section, make_env, options_table, resolve_env
from actors.envs.vector import VectorEnv
from tests.actors import playing
from tests.actors.envs.foreign.batches import HERE, LENGTH
from tests.actors.playing import refusal

WALKS = f"{HERE}:Walks-v0"


def vector(env_id: str, count: int = 3, **more: Any) -> VectorEnv:
    return playing.vector({"id": env_id, "backend": "vector"} | more, count)


def test_each_environment_of_a_batch_begins_anew_alone_beside_its_last_observation() -> None:
    env = vector(WALKS)
    first = env.reset()["observation"]
    steps = [env.step(np.array([0, 1, 1])) for _ in range(LENGTH)]
    last = steps[-1]
    assert not any(step.episodes for step in steps[:-1]) and last.terminated.all() and not last.truncated.any()
    assert [episode.total_reward for episode in last.episodes] == [0.0, LENGTH, LENGTH]
    assert all(episode.success for episode in last.episodes)
    assert np.array_equal(last.final_observation["observation"], first + [LENGTH, 0])
    new = last.observation["observation"]
    assert (new[:, 0] == 0).all() and (new[:, 1] != first[:, 1]).all()


def test_a_batch_may_have_dicts_of_observations_and_a_score_of_all_is_none_of_one() -> None:
    env = vector(f"{HERE}:WalksOfDicts-v0")
    assert env.reset()["at"].shape == (3, 2)
    episodes = [env.step(np.ones(3, np.int64)).episodes for _ in range(LENGTH)][-1]
    assert [episode.score for episode in episodes] == [LENGTH] * 3


def test_an_environment_of_a_batch_that_is_reset_alone_leaves_the_others_at_work() -> None:
    env = vector(WALKS)
    env.reset()
    env.step(np.zeros(3, np.int64))
    simulators = env._simulators
    alone = simulators.reset(np.array([1]), [None])["observation"]
    assert alone.shape == (1, 2) and alone[0, 0] == 0
    assert simulators.step(np.zeros(3, np.int64)).observation["observation"][:, 0].tolist() == [2, 1, 2]


def test_the_same_seeds_give_the_same_batch_and_a_limit_of_steps_truncates_it() -> None:
    env, other = (vector(WALKS, max_episode_steps=2) for _ in range(2))
    assert np.array_equal(env.reset()["observation"], other.reset()["observation"])
    assert [env.step(np.zeros(3, np.int64)).truncated.all() for _ in range(2)] == [False, True]


def test_bounded_floats_of_a_batch_are_quantised_as_those_of_one() -> None:
    def seen(backend: str) -> np.ndarray:
        env = playing.vector({"id": WALKS, "backend": backend, "quantise": True}, 1)
        env.reset()
        return env.step(np.zeros(1, np.int64)).observation["observation"]

    assert seen("vector").dtype == np.uint8 and seen("vector")[0, 0] == seen("gymnasium")[0, 0] == round(255 / 100)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        (f"{HERE}:WalksAtOnce-v0", "its vector environment cannot reset one environment without the others"),
        (f"{HERE}:WalksAtOnceInPlace-v0", "its vector environment cannot reset one environment without the others"),
        ("CartPole-v1", "its vector environment cannot reset one environment without the others"),
        ("Acrobot-v1", "Acrobot-v1 has no vector_entry_point in Gymnasium's registry"),
    ],
)
def test_what_no_batch_can_be_made_of_is_one_line_with_the_remedy(env_id: str, words: str) -> None:
    told = refusal(vector, env_id)
    assert words in told and "take --env.backend gymnasium" in told


def test_an_unresolved_auto_is_stepped_in_turn() -> None:
    env = playing.vector("CartPole-v1", 2)
    assert type(env._simulators).__name__ == "EnvsInTurn"


def test_ids_that_a_modules_register_envs_registers_are_found() -> None:
    settled = resolve_env(EnvConfig(id=f"{HERE}:WalkLater-v0"))
    assert make_env(settled).observation_space.shape == (2,) and "backend" not in env_section(settled)


def test_defaults_that_json_cannot_express_are_left_to_the_environment() -> None:
    def make(span: tuple[float, float] = (0.7, float("inf")), camera: dict[str, float] = {"distance": 3.0}) -> None:  # noqa: B006
        """An environment's entry point."""

    kind = options.signature_options(make, {})
    assert options_table(msgspec.convert({}, kind)) == {}
    assert options.non_default(kind(camera={"distance": 2.0})) == {"camera": {"distance": 2.0}}  # type: ignore[call-arg]
