"""The corridor: only its first observation holds the sign."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from headrace.corridor import Corridor


def test_it_is_an_environment_as_gymnasium_has_them() -> None:
    check_env(Corridor(), skip_render_check=True)
    for options in ({"length": 0}, {"cues": 1}):
        with pytest.raises(ValueError, match="a corridor needs a length of at least 1 and at least 2 cues"):
            Corridor(**options)


@pytest.mark.parametrize("cues", [2, 4])
def test_only_the_door_of_the_sign_is_right_and_the_sign_is_seen_once(cues: int) -> None:
    env, signs = Corridor(30, cues), set()
    for seed in range(20):
        seen, _ = env.reset(seed=seed)
        sign, right = int(seen.argmax()), seed % 2 == 0
        signs.add(sign)
        assert seen[:cues].sum() == 1 and seen[cues] == 0
        for place in range(1, 31):
            seen, reward, ended, truncated, info = env.step((sign + place) % cues)  # does not matter yet
            assert not seen[:cues].any() and seen[cues] == (place == 30)
            assert (reward, ended, truncated, info) == (0.0, False, False, {"is_success": False})
        _, reward, ended, truncated, info = env.step(sign if right else (sign + 1) % cues)
        assert (reward, ended, truncated) == (1.0 if right else -1.0, True, False) and info == {"is_success": right}
    assert signs == set(range(cues))


def test_nothing_but_the_first_observation_tells_one_episode_from_another() -> None:
    env = Corridor(5)
    episodes = []
    for seed in range(10):
        env.reset(seed=seed)
        episodes.append(np.array([env.step(0)[0] for _ in range(6)]))
    assert all(np.array_equal(episodes[0], episode) for episode in episodes)
