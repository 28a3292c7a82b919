"""A person at the keys, who is a function here: what is shown goes in, keys come out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from actors.config import EnvConfig
from actors.datasets.base import DatasetError, Episode, open_source
from actors.envs.foreign.keys import Keys
from actors.envs.spec import experience_spec
from actors.evaluation.video.pressed import Pressed
from actors.person.recording import Recording
from actors.person.session import LEAST_RATE, PlaySession, pictures_per_step
from tests.actors.datasets.episodes import same

LENGTH = 4
Person = Callable[[Sequence[str], int], str]  # what is beside the picture, the brightness of the picture -> the key, or ""


class Corridor(gymnasium.Env):
    """Walks to the right end, where there is a reward. What it observes and takes is kept for comparison."""

    metadata = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"
    observation_space = spaces.Dict({"place": spaces.Box(0, LENGTH, (1,), np.float32), "doors": spaces.MultiBinary(2)})

    def __init__(self, action_space: spaces.Space | None = None, rewards: float = 1.0) -> None:
        self.action_space = action_space or spaces.Discrete(2, start=5)
        self._rewards = rewards
        self.took: list[list[Any]] = []

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = 0
        self._buffer = np.zeros(1, np.float32)  # the same array again and again, as some simulators do
        self.took.append([])
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        ahead = float(np.sum(action)) > 0 if isinstance(self.action_space, spaces.Box) else bool(action == 6)
        self.place = max(self.place + (1 if ahead else -1), 0)
        self._buffer[:] = self.place
        self.took[-1].append(action)
        return self._seen(), self._rewards if self.place == LENGTH else 0.0, self.place == LENGTH, len(self.took[-1]) == 9, {}

    def _seen(self) -> dict[str, Any]:
        return {"place": self._buffer, "doors": np.array([self.place % 2, 1], np.int8)}

    def render(self) -> np.ndarray:  # type: ignore[override]
        return np.full((20, 20, 3), self.place, np.uint8)


class Shown:
    """A screen whose person presses and releases a key after each picture."""

    def __init__(self, env: gymnasium.Env, person: Person) -> None:
        self.pressed, self._person, self.said = Pressed(Keys(env.action_space)), person, list[str]()

    def show(self, frame: np.ndarray, status: Sequence[str] = (), keys: Sequence[str] = ()) -> None:
        assert any("throw" in line for line in keys)
        if key := self._person(status, int(frame[0, 0, 0])):
            self.pressed.down(key)
            self.pressed.up(key)

    def say(self, line: str) -> None:
        self.said.append(line)

    def close(self) -> None: ...


class Keyed:
    """Presses keys in turn, one for each picture; then Esc."""

    def __init__(self, keys: str) -> None:
        self._keys = keys.split()

    def __call__(self, status: Sequence[str], place: int) -> str:
        return {"-": ""}.get(key := self._keys.pop(0) if self._keys else "escape", key)


def recording(env: gymnasium.Env, path: Path) -> Recording:
    return Recording(path, env, experience_spec(env, EnvConfig(id="toy"), "none"), "a person in a corridor")


def never() -> bool:
    return False


def play(env: gymnasium.Env, path: Path, person: Person, episodes: int = 0, stopped: Callable[[], bool] = never) -> list[str]:
    """What the person reads at the end."""
    screen, file = Shown(env, person), recording(env, path)
    PlaySession(env, screen, screen.pressed, file, LEAST_RATE, stopped).play(episodes, seed=1)
    return screen.said


def read(path: Path) -> list[Episode]:
    return list(open_source(str(path)).episodes())


def walker(status: Sequence[str], place: int) -> str:
    """Goes to the end; once back on the way."""
    return "left" if "step 2" in status else "right"


def test_what_was_played_is_what_the_data_set_holds(tmp_path: Path) -> None:
    env, path = Corridor(), tmp_path / "played.npz"
    said = play(env, path, walker, episodes=2)
    taken = [6, 6, 5, 6, 6, 6]
    assert [[int(action) for action in episode] for episode in env.took] == [taken, taken]
    assert said == [f"episode {number}: return 1.00, 6 steps" for number in (1, 2)]
    places = np.array([0, 1, 2, 1, 2, 3, 4], np.float32)
    observations = {"place": places[:, None], "doors": np.stack([places % 2, np.ones(7)], 1).astype(np.int8)}
    meant = Episode(observations, np.array(taken), np.array([0, 0, 0, 0, 0, 1], np.float32), True)
    found = read(path)
    assert len(found) == 2
    for one in found:
        same(meant, one)
    spaces_of = open_source(str(path)).spaces
    assert spaces_of is not None and spaces_of == (env.observation_space, env.action_space)


def test_numbers_are_recorded_as_the_environment_takes_them(tmp_path: Path) -> None:
    env = Corridor(spaces.Box(np.array([-1.0, -3.0]), np.array([2.0, 3.0]), dtype=np.float64))
    play(env, tmp_path / "played.npz", Keyed("x right up right left left"))
    (episode,) = read(tmp_path / "played.npz")
    np.testing.assert_array_equal(episode.actions, [[2, 0], [0, 3], [2, 0], [-1, 0], [-1, 0]])
    assert episode.terminated is False  # it had not ended


def test_an_episode_may_be_thrown_away_while_it_runs_and_after_its_end(tmp_path: Path) -> None:
    path = tmp_path / "played.npz"
    said = play(Corridor(), path, Keyed("x right right r x right right right right r " + "x right right right right -"))
    assert said == [
        "episode 1: thrown away after 2 steps",
        "episode 1: return 1.00, 4 steps",
        "episode 1: thrown away",
        "episode 1: return 1.00, 4 steps",
    ]
    assert len(read(path)) == 1
    assert play(Corridor(), path, Keyed("r r x right"))[-1].startswith("episode 2: return 0.0, 1 steps; it had not ended")
    only = tmp_path / "only.npz"
    play(Corridor(), only, Keyed("x right right right right r r r"))
    assert not only.exists()


def test_where_no_action_means_waiting_it_waits_for_a_key_and_elsewhere_it_goes_on(tmp_path: Path) -> None:
    choices, numbers = Corridor(), Corridor(spaces.Box(-1, 1, (1,), np.float32))
    for env in (choices, numbers):
        play(env, tmp_path / f"{len(env.action_space.shape or ())}.npz", Keyed("x right - - p - - - x right"))
    assert len(choices.took[0]) == 2
    assert len(numbers.took[0]) == 4  # none in the pause


def test_a_slow_environment_is_shown_more_often_than_it_steps(tmp_path: Path) -> None:
    assert (pictures_per_step(4), pictures_per_step(30), pictures_per_step(60)) == (8, 1, 1)
    env, shown = Corridor(spaces.Box(-1, 1, (1,), np.float32)), list[int]()

    def person(status: Sequence[str], place: int) -> str:
        shown.append(place)
        return "x" if len(shown) == 1 else "right" if len(shown) in (3, 10, 16) else ""

    screen, file = Shown(env, person), recording(env, tmp_path / "p.npz")
    PlaySession(env, screen, screen.pressed, file, 6.0, lambda: len(shown) > 20).play(0, 1)
    assert [float(action[0]) for action in env.took[0]] == [1, 1, 1, 0]


def test_a_signal_ends_it_and_what_ran_is_kept_as_truncated(tmp_path: Path) -> None:
    pictures = iter(range(100))
    said = play(Corridor(), tmp_path / "p.npz", Keyed("x right right"), stopped=lambda: next(pictures) == 3)
    assert said == ["episode 1: return 0.0, 2 steps; it had not ended, and is kept as truncated"]
    assert not read(tmp_path / "p.npz")[0].terminated


def test_an_episode_that_no_run_could_take_is_not_recorded_and_the_next_one_is(tmp_path: Path) -> None:
    env, path = Corridor(rewards=np.inf), tmp_path / "p.npz"
    keys = "x right right right right" + " -" * 30 + " x right"
    assert "not recorded, because the reward has a value that is not finite" in play(env, path, Keyed(keys))[0]
    assert [len(one.rewards) for one in read(path)] == [1]


def test_episodes_are_added_to_a_file_of_the_same_spaces_and_to_no_other(tmp_path: Path) -> None:
    path = tmp_path / "p.npz"
    play(Corridor(), path, walker, episodes=1)
    play(Corridor(), path, walker, episodes=2)
    assert len(read(path)) == 3
    before = path.read_bytes()
    with pytest.raises(DatasetError, match="--out"):
        recording(Corridor(spaces.Discrete(3)), path)
    path.write_bytes(b"no data set")
    with pytest.raises(DatasetError):
        recording(Corridor(), path)
    assert before and path.read_bytes() == b"no data set"
