"""Atari: the usual preprocessing, held against Gymnasium's own."""

from __future__ import annotations

from importlib.util import find_spec

import gymnasium
import numpy as np
import pytest

from actors.config import EnvConfig
from actors.envs.make import EnvError, make_env

needs_atari = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed: pip install 'headrace[atari]'")
STEPS = 400


@needs_atari
@pytest.mark.parametrize("skip", [2, 4])
def test_frames_rewards_and_ends_are_those_of_gymnasiums_preprocessing(skip: int) -> None:
    ours = make_env(EnvConfig(id="ALE/Breakout-v5", options={"skip": skip}))
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
def test_an_unknown_game_names_the_nearest() -> None:
    with pytest.raises(EnvError, match=r"unknown environment 'ALE/Pog-v5' \(did you mean ALE/Pong-v5"):
        make_env(EnvConfig(id="ALE/Pog-v5"))
