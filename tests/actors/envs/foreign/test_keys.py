"""Which keys stand for which action."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from actors.config import EnvConfig
from actors.envs.foreign.actions import to_env_action
from actors.envs.foreign.keys import Keys, keys_of
from actors.envs.make import make_env, open_family
from actors.errors import EnvError

MARIO = ("NOOP", "right", "right+A", "right+B", "right+B+A", "A", "left")
ATARI = ("NOOP", "FIRE", "UP", "RIGHT", "LEFT", "DOWN", "UPRIGHT", "UPLEFTFIRE")
MOTORS = spaces.Box(np.array([-1.0, -1.0], np.float32), np.array([1.0, 1.0], np.float32))
CAR = spaces.Box(np.array([-1.0, 0.0, 0.0], np.float32), np.array([1.0, 1.0, 1.0], np.float32))


def of(env_id: str) -> tuple[gymnasium.Env, Keys]:
    env = make_env(config := EnvConfig(id=env_id))
    return env, keys_of(env, open_family(config))


@pytest.mark.parametrize(
    ("names", "pressed", "meant"),
    [
        (MARIO, (), "NOOP"),
        (MARIO, ("right", "a"), "right+A"),
        (MARIO, ("right", "space", "shift"), "right+B+A"),  # both are further keys, which terminals and gamepads have
        (MARIO, ("up",), "NOOP"),
        (MARIO, ("left", "a"), "A"),  # there is no such combination: one of its keys
        (ATARI, ("up", "right"), "UPRIGHT"),
        (ATARI, ("up", "left", "space"), "UPLEFTFIRE"),
        (ATARI, ("down", "right"), "RIGHT"),
        (("turn left", "straight on", "turn right"), (), "straight on"),
        (("south", "north", "east", "west", "pick up", "drop off"), ("down",), "south"),
        (("south", "north", "east", "west", "take", "give"), ("5",), "give"),  # no word is known: its number
    ],
)
def test_words_in_the_names_of_actions_say_which_keys_they_are(
    names: tuple[str, ...], pressed: tuple[str, ...], meant: str
) -> None:
    assert names[int(Keys(spaces.Discrete(len(names)), names).action(pressed))] == meant


def test_two_actions_are_left_and_right_and_more_without_names_are_numbers() -> None:
    two, many = Keys(spaces.Discrete(2)), Keys(spaces.Discrete(12))
    assert (two.action(["left"]), two.action(["right"]), two.idle) == (0, 1, False)
    assert (two.needs_key([]), two.needs_key(["up"]), two.needs_key(["up", "left"])) == (True, True, False)
    assert [many.action([key]) for key in ("0", "9", "a", "s")] == [0, 9, 10, 11]
    assert two.lines() == ["left   action 0", "right  action 1"]


def test_an_environments_own_keys_are_used_where_names_do_not_say_enough() -> None:
    own = {(): 1, (276,): 0, (275,): 2, (275, 276): 1}  # as MountainCar has them, with pygame 1's codes
    keys = Keys(spaces.Discrete(3), own=own)
    assert [int(keys.action(held)) for held in ((), ("left",), ("right",), ("up",))] == [1, 0, 2, 1] and keys.idle
    letters = Keys(spaces.Discrete(2, start=5), own={"w": 5, (ord("s"),): 6})
    assert (letters.action("w"), letters.action("s"), letters.used) == (0, 1, {"w", "s"})


def test_an_action_of_several_choices_has_a_key_for_each_value() -> None:
    space = spaces.MultiDiscrete([2, 4])
    keys = Keys(space)
    assert to_env_action(space, keys.action(["left", "down"])).tolist() == [1, 3]
    assert to_env_action(space, keys.action(())).tolist() == [0, 0]
    large = Keys(spaces.MultiDiscrete([16, 16, 5]))  # too many combinations for one index
    assert large.action(["right"]).tolist() == [2, 0, 0]  # type: ignore[union-attr]


def test_numbers_go_to_their_bounds_while_a_key_is_held_and_as_far_as_a_stick_says() -> None:
    keys = Keys(MOTORS)
    np.testing.assert_array_equal(keys.action(["left", "up"]), [-1, 1])
    np.testing.assert_array_equal(keys.action(["left", "right"]), [0, 0])
    np.testing.assert_allclose(keys.action({"right": 0.25, "down": 1.0}), [0.25, -1])
    np.testing.assert_array_equal(Keys(MOTORS, ("main engine, up", "side")).action(["up"]), [1, 0])


def test_an_entry_that_rests_at_a_bound_has_one_key() -> None:
    car = Keys(CAR, ("steer", "gas", "brake"))
    for held, action in {(): [0, 0, 0], ("up",): [0, 1, 0], ("down", "left"): [-1, 0, 1]}.items():
        np.testing.assert_array_equal(car.action(held), action)
    assert car.lines()[-1].split() == ["down", "brake", "1"]


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(500),
        spaces.MultiDiscrete([50, 50]),
        spaces.Box(-1, 1, (17,), np.float32),
        spaces.Box(-np.inf, np.inf, (1,), np.float32),
        spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Box(-1, 1, (1,), np.float32)}),
    ],
)
def test_a_space_that_no_keys_can_steer_is_refused_in_a_line(space: spaces.Space) -> None:
    with pytest.raises(EnvError) as refused:
        Keys(space)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("env_id", ["CartPole-v1", "MountainCar-v0", "CliffWalking-v1", "FrozenLake-v1", "snake"])
def test_known_environments_have_keys_that_reach_all_their_actions(env_id: str) -> None:
    env, keys = of(env_id)
    reached = [to_env_action(env.action_space, keys.action(held)) for held in ((), *((key,) for key in keys.used))]
    assert all(env.action_space.contains(action) for action in reached)
    if isinstance(env.action_space, spaces.Discrete):
        assert {int(action) for action in reached} == set(range(int(env.action_space.n)))
    assert keys.lines() and {"left", "right"} <= keys.used
    env.close()


def test_the_wheel_of_a_lander_is_as_one_expects_it() -> None:
    pytest.importorskip("Box2D")
    env, keys = of("LunarLander-v3")
    assert [int(keys.action(held)) for held in ((), ("left",), ("up",), ("right",))] == [0, 1, 2, 3]
    env.close()
    env, keys = of("LunarLanderContinuous-v3")
    np.testing.assert_array_equal(keys.action(["up", "left"]), [1, -1])
    env.close()
