"""Atari: the usual preprocessing, held against Gymnasium's own."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.base import Setup
from actors.envs.make import EnvError, make_env, open_family, read_env

needs_atari = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed: pip install 'headrace[atari]'")
STEPS = 400


@needs_atari
@pytest.mark.parametrize("skip", [2, 4])
def test_frames_rewards_and_ends_are_those_of_gymnasiums_preprocessing(skip: int) -> None:
    ours = make_env(EnvConfig(id="ALE/Breakout-v5", options={"skip": skip, "fire": False}))
    theirs = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1), frame_skip=skip)
    random = np.random.default_rng(0)
    one, other = ours.reset(seed=3)[0], theirs.reset(seed=3)[0]
    rewards = ends = 0.0
    for _ in range(STEPS):
        assert np.array_equal(one, other)
        action = int(random.integers(4))
        (one, *rest, _), (other, *same, _) = ours.step(action), theirs.step(action)
        assert rest == same
        rewards += float(rest[0])
        if rest[1] or rest[2]:
            ends += 1
            assert np.array_equal(one, other)
            one, other = ours.reset()[0], theirs.reset()[0]
    assert rewards > 0 and ends > 0, "the run was too short to say anything"


@needs_atari
def test_actions_stick_as_registered_and_seeds_tell_runs_apart() -> None:
    def run(seed: int) -> list[bytes]:
        env = make_env(EnvConfig(id="ALE/Pong-v5"))
        seen = [env.reset(seed=seed)[0]]
        return [frame.tobytes() for frame in [*seen, *(env.step(number // 8 % 6)[0] for number in range(100))]]

    assert run(1) == run(1) != run(2)
    assert make_env(EnvConfig(id="ALE/Pong-v5")).unwrapped.ale.getFloat("repeat_action_probability") == 0.25  # type: ignore[attr-defined]


@needs_atari
def test_a_step_limit_truncates_and_it_can_be_filmed() -> None:
    env = make_env(EnvConfig(id="ALE/Pong-v5", max_episode_steps=3), render_mode="rgb_array")
    env.reset(seed=0)
    assert [env.step(0)[3] for _ in range(3)] == [False, False, True]
    assert np.shape(np.asarray(env.render())) == (210, 160, 3)


@needs_atari
def test_the_observed_frame_has_the_size_that_is_asked_for() -> None:
    for backend in ("gymnasium", "vector"):
        config = read_env({"id": "ALE/Pong-v5", "size": 42, "backend": backend})
        env = make_env(config)
        assert env.observation_space.shape == env.reset(seed=1)[0].shape == (42, 42)
        simulators = open_family(config).simulators(env, 2)
        if backend == "vector":
            assert simulators is not None
            assert next(iter(simulators.reset(np.ones(2, bool), [1, 2]).values())).shape == (2, 42, 42)
            simulators.close()
        env.close()


@needs_atari
def test_an_unknown_game_names_the_nearest() -> None:
    with pytest.raises(EnvError, match=r"unknown environment 'ALE/Pog-v5' \(did you mean ALE/Pong-v5"):
        make_env(EnvConfig(id="ALE/Pog-v5"))


@needs_atari
def test_a_game_whose_lives_begin_with_fire_is_told_from_others() -> None:
    from actors.envs.atari.env import waits_for_fire

    games = ("Breakout", "Pong", "SpaceInvaders", "Freeway", "Bowling")
    assert [waits_for_fire(f"ALE/{game}-v5") for game in games] == [True, False, False, False, False]


@needs_atari
def test_breakout_goes_on_without_fire_from_the_agent_after_a_reset_and_after_each_lost_life() -> None:
    def lives(fire: bool) -> tuple[set[int], bool]:
        """The lives seen in a game of no action, and whether it came to its end."""
        env = make_env(EnvConfig(id="ALE/Breakout-v5", options={"fire": fire}))
        env.reset(seed=0)
        seen = set()
        for _ in range(400):
            _, _, terminated, _, info = env.step(0)
            seen.add(info["lives"])
            if terminated:
                break
        env.close()
        return seen, terminated

    assert lives(True) == ({0, 1, 2, 3, 4, 5}, True)
    assert lives(False) == ({5}, False)


@needs_atari
def test_ale_pys_batch_has_the_same_pictures_and_rewards() -> None:
    from ale_py.vector_env import AtariVectorEnv

    from actors.envs.atari.env import OneFrame

    sticky: Any = {"repeat_action_probability": 0.0}
    one: Any = gymnasium.wrappers.AtariPreprocessing(gymnasium.make("ALE/Breakout-v5", frameskip=1, **sticky), noop_max=0)
    batch = AtariVectorEnv(
        "breakout", 2, noop_max=0, stack_num=1, use_fire_reset=False, reward_clipping=False, num_threads=1, **sticky
    )
    both: Any = OneFrame(batch)
    seen, frames, random, total = one.reset(seed=0)[0], both.reset(seed=0)[0], np.random.default_rng(0), 0.0
    for _ in range(200):
        assert np.array_equal(frames[0], seen) and np.array_equal(frames[1], seen)
        action = int(random.integers(4))
        (seen, *rest), (frames, *same) = one.step(action), both.step(np.array([action, action]))
        assert [float(part) for part in rest[:3]] == [float(part[0]) for part in same[:3]]
        total += float(rest[0])
        if rest[1]:
            break
    assert total > 0, "the run was too short to say anything"


@needs_atari
def test_a_batch_is_refused_where_only_the_plain_way_presses_fire() -> None:
    family = open_family(EnvConfig(id="ALE/Breakout-v5", options={"backend": "vector"}))
    with pytest.raises(EnvError, match="take --env.backend gymnasium, or --env.fire false"):
        family.simulators(family.make(Setup()), 2)
