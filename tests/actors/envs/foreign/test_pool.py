"""EnvPool's environments held equal to Gymnasium's: `--env.backend envpool`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.foreign.batched import backends
from actors.envs.make import env_section, make_env, read_env, resolve_env
from actors.envs.preflight.notes import IN_TURN
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv, VectorStep
from actors.errors import EnvError
from tests.actors import playing
from tests.actors.envs.foreign.batches import HERE
from tests.actors.playing import random_actions, refusal, tried

needs_pool = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed: pip install 'headrace[envpool]'")
needs_box2d = pytest.mark.skipif(find_spec("Box2D") is None, reason="Box2D is not installed: pip install 'headrace[box2d]'")
needs_mujoco = pytest.mark.skipif(find_spec("mujoco") is None, reason="MuJoCo is not installed: pip install 'headrace[mujoco]'")
SURE = 1.95  # of a Kolmogorov-Smirnov statistic times sqrt(n m / (n + m)): one distribution exceeds it once in a thousand


def vector(env_id: str, backend: str, seeds: range, evaluation: EvaluatorConfig | None = None, **more: Any) -> VectorEnv:
    return playing.vector({"id": env_id, "backend": backend} | more, len(seeds), seeds.start, evaluation=evaluation)


def play(env: VectorEnv, steps: int, seed: int = 0) -> tuple[np.ndarray, list[VectorStep]]:
    """The first observations [K, …], and the steps by random actions."""
    random, spec = np.random.default_rng(seed), experience_spec(env.example, EnvConfig(), "none")
    return env.reset()["observation"].copy(), [env.step(random_actions(spec, env.count, random)) for _ in range(steps)]


# ---- the same steps from the same state


def place_cart_pole(env: Any, seen: np.ndarray) -> None:
    env.state, env.steps_beyond_terminated = tuple(seen), None


def place_car(env: Any, seen: np.ndarray) -> None:
    env.state = np.array(seen)


def place_pendulum(env: Any, seen: np.ndarray) -> None:
    env.state = np.array([np.arctan2(seen[1], seen[0]), seen[2]])


def place_acrobot(env: Any, seen: np.ndarray) -> None:
    env.state = np.array([np.arctan2(seen[1], seen[0]), np.arctan2(seen[3], seen[2]), seen[4], seen[5]])


def place_body(env: Any, seen: np.ndarray) -> None:
    """A body that is seen whole but for how far it has gone, which moves nothing."""
    positions = env.model.nq - 1
    env.set_state(np.concatenate([[0.0], seen[:positions]]), seen[positions:])


@needs_pool
@pytest.mark.parametrize(
    ("env_id", "place"),
    [
        ("CartPole-v1", place_cart_pole),
        ("MountainCar-v0", place_car),
        ("MountainCarContinuous-v0", place_car),
        ("Pendulum-v1", place_pendulum),
        ("Acrobot-v1", place_acrobot),
        pytest.param("HalfCheetah-v5", place_body, marks=needs_mujoco),
    ],
)
def test_a_step_from_the_same_state_is_that_of_gymnasium(env_id: str, place: Callable[[Any, np.ndarray], None]) -> None:
    pool, one = vector(env_id, "envpool", range(2)), gymnasium.make(env_id)
    one.reset(seed=0)
    spec, random = experience_spec(one, EnvConfig(), "none"), np.random.default_rng(0)
    seen = pool.reset()["observation"].copy()
    for _ in range(60):
        actions = random_actions(spec, 2, random)
        step = pool.step(actions)
        ended = step.terminated | step.truncated
        for k in range(2):
            place(one.unwrapped, seen[k].astype(np.float64))
            observation, reward, terminated, _, _ = one.unwrapped.step(actions[k])
            last = (step.final_observation if ended[k] else step.observation)["observation"][k]
            assert np.allclose(last, observation, rtol=1e-3, atol=2e-3) and terminated == step.terminated[k]
            assert float(step.reward[k]) == pytest.approx(float(reward), rel=1e-3, abs=2e-3)
        seen = step.observation["observation"].copy()
    pool.close()


# ---- the same distributions, where the state cannot be set


def apart(one: np.ndarray, other: np.ndarray) -> float:
    """The Kolmogorov-Smirnov statistic of two samples, times sqrt(n m / (n + m))."""
    one, other = np.sort(one), np.sort(other)
    values = np.concatenate([one, other])
    shares = (np.searchsorted(sample, values, "right") / len(sample) for sample in (one, other))
    difference: float = np.abs(np.subtract(*shares)).max()
    return difference * float(np.sqrt(len(one) * len(other) / (len(one) + len(other))))


def sample(env_id: str, backend: str, first_seed: int) -> dict[str, np.ndarray]:
    """Figures of random play; each environment plays as many episodes, so that short ones do not count more often."""
    env = vector(env_id, backend, range(first_seed, first_seed + 16))
    spec, random = experience_spec(env.example, EnvConfig(), "none"), np.random.default_rng(first_seed)
    first, quota, ended = [env.reset()["observation"].copy()], np.full(16, 5), []
    last = []
    while (quota > 0).any():
        step = env.step(random_actions(spec, 16, random))
        for episode in step.episodes:
            if quota[episode.env] > 0:
                quota[episode.env] -= 1
                ended.append((episode.total_reward, episode.length, step.terminated[episode.env]))
                last.append(step.final_observation["observation"][episode.env])
                first.append(step.observation["observation"][episode.env][None])
    env.close()
    figures = dict(zip(("return", "length", "terminated"), np.array(ended, float).T, strict=True))
    for name, rows in (("first", np.concatenate(first)), ("last", np.array(last))):
        figures |= {f"{name} observation, entry {k}": column for k, column in enumerate(rows.T)}
    return figures


def all_alike(env_id: str) -> None:
    ours, theirs = sample(env_id, "gymnasium", 7_000), sample(env_id, "envpool", 100)
    limit = SURE + 0.4  # there are some twenty figures
    assert not {name: found for name in ours if (found := apart(ours[name], theirs[name])) > limit}


@needs_pool
@pytest.mark.parametrize(
    "env_id",
    [
        pytest.param("LunarLander-v3", marks=needs_box2d),
        pytest.param("LunarLanderContinuous-v3", marks=[needs_box2d, pytest.mark.slow]),
        pytest.param("BipedalWalker-v3", marks=[needs_box2d, pytest.mark.slow]),
        pytest.param("BipedalWalkerHardcore-v3", marks=[needs_box2d, pytest.mark.slow]),
        pytest.param("Hopper-v5", marks=needs_mujoco),
        pytest.param("Walker2d-v5", marks=[needs_mujoco, pytest.mark.slow]),
        pytest.param("Ant-v5", marks=[needs_mujoco, pytest.mark.slow]),
    ],
)
def test_random_play_has_the_same_returns_lengths_ends_and_observations(env_id: str) -> None:
    all_alike(env_id)


@needs_pool
def test_the_comparison_tells_different_environments_apart() -> None:
    ours, theirs = sample("CartPole-v1", "gymnasium", 7_000), sample("CartPole-v1", "envpool", 100)
    assert apart(ours["length"], theirs["length"]) < SURE < apart(ours["length"], theirs["length"] * 1.5)


# ---- ends of episodes


@needs_pool
def test_a_new_episode_begins_in_the_step_that_ends_the_old_one_beside_its_last_observation() -> None:
    env = vector("CartPole-v1", "envpool", range(4))
    seen, steps = play(env, 120)
    before, lengths = seen, np.zeros(4, int)
    for step in steps:
        lengths += 1
        for episode in step.episodes:
            k = episode.env
            x, _, angle, _ = step.final_observation["observation"][k]
            assert step.terminated[k] and (abs(x) > 2.4 or abs(angle) > 0.2094), "the last observation is beyond the bounds"
            assert episode.length == lengths[k] == episode.total_reward, "the first step of an episode counts"
            assert np.abs(step.observation["observation"][k]).max() <= 0.05
            lengths[k] = 0
        running = ~(step.terminated | step.truncated)
        moved = step.observation["observation"][running, 0] - before[running, 0]
        assert np.allclose(moved, 0.02 * before[running, 1], atol=1e-6), "each step goes on from the one before"
        before = step.observation["observation"]
    assert sum(len(step.episodes) for step in steps) > 8


@needs_pool
def test_a_limit_truncates_but_an_episode_that_ends_in_its_last_step_is_terminated() -> None:
    free = vector("CartPole-v1", "envpool", range(1))
    free.reset()
    length = next(number for number in range(1, 100) if free.step(np.zeros(1, np.int64)).terminated[0])
    for limit, terminated in ((length, True), (length - 1, False), (length + 1, True)):
        env = vector("CartPole-v1", "envpool", range(1), max_episode_steps=limit)
        env.reset()
        steps = [env.step(np.zeros(1, np.int64)) for _ in range(min(limit, length))]
        assert not any(step.episodes for step in steps[:-1])
        assert (bool(steps[-1].terminated[0]), bool(steps[-1].truncated[0])) == (terminated, not terminated)


@needs_pool
def test_gymnasiums_limit_of_steps_holds_and_an_evaluation_may_cut_earlier() -> None:
    env = vector("Pendulum-v1", "envpool", range(2))
    _, steps = play(env, 400)
    assert [number for number, step in enumerate(steps, 1) if step.truncated.any()] == [200, 400]
    cut = vector("Pendulum-v1", "envpool", range(2), EvaluatorConfig(max_episode_steps=7))
    _, steps = play(cut, 21)
    assert [number for number, step in enumerate(steps, 1) if step.truncated.all()] == [7, 14, 21]
    assert {episode.length for step in steps for episode in step.episodes} == {7}


# ---- seeds


@needs_pool
def test_an_environments_episodes_follow_from_its_seed_whatever_is_beside_it() -> None:
    random = np.random.default_rng(0)
    actions = random.integers(2, size=(80, 4))

    def seen(seeds: range) -> np.ndarray:
        env = vector("CartPole-v1", "envpool", seeds)
        rows = [env.reset()["observation"].copy()]
        rows += [env.step(row[seeds.start : seeds.stop]).observation["observation"].copy() for row in actions]
        env.close()
        return np.array(rows)  # [T, K, 4]

    together = seen(range(4))
    assert np.array_equal(together, seen(range(4)))
    assert np.array_equal(together[:, 2:3], seen(range(2, 3)))
    assert not np.array_equal(together[:, 0], together[:, 1])


@needs_pool
def test_new_seeds_for_all_begin_anew_and_large_seeds_are_taken() -> None:
    env = vector("CartPole-v1", "envpool", range(2**40, 2**40 + 2))
    first = env.reset()["observation"].copy()
    assert not np.array_equal(first, env.reset()["observation"]), "without a seed the random numbers go on"
    env.reseed([2**40, 2**40 + 1])
    assert np.array_equal(first, env.reset()["observation"])


# ---- which backend is taken


@needs_pool
@pytest.mark.parametrize(
    ("section", "taken"),
    [
        pytest.param({"id": "LunarLander-v3"}, "envpool", marks=needs_box2d),
        pytest.param({"id": "LunarLander-v3", "backend": "gymnasium"}, "gymnasium", marks=needs_box2d),
        pytest.param({"id": "LunarLander-v3", "gravity": -9.0}, "gymnasium", marks=needs_box2d),
        pytest.param({"id": "CarRacing-v3"}, "gymnasium", marks=needs_box2d),
        ({"id": "CartPole-v1"}, "gymnasium"),
        ({"id": "CartPole-v1", "backend": "envpool"}, "envpool"),
        ({"id": "Taxi-v4"}, "gymnasium"),
        ({"id": f"{HERE}:Walks-v0"}, "gymnasium"),
    ],
)
def test_the_backend_of_a_run_is_settled_at_its_launch(section: dict[str, Any], taken: str) -> None:
    settled = env_section(resolve_env(read_env(section)))
    assert settled.get("backend", "gymnasium") == taken
    assert env_section(resolve_env(read_env(settled))) == settled, "and stays for a resume"


@needs_box2d
def test_without_envpool_auto_is_gymnasium_and_envpool_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "envpool", None)
    assert "backend" not in env_section(resolve_env(read_env({"id": "LunarLander-v3"})))
    with pytest.raises(EnvError, match=r"Acrobot-v1 needs envpool, which is not installed: .*pip install .*\[envpool\]', or "):
        vector("Acrobot-v1", "envpool", range(2))


@needs_pool
@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"id": "Pendulum-v1", "g": 9.0}, "Pendulum-v1: EnvPool's version has no --env.g: take --env.backend gymnasium"),
        ({"id": "Taxi-v4"}, "Taxi-v4: EnvPool has no environment that is known to be the same: take --env.backend gymnasium"),
        ({"id": f"{HERE}:Walks-v0"}, "EnvPool has no environment that is known to be the same: take --env.backend gymnasium"),
    ],
)
def test_what_envpool_lacks_is_one_line_with_the_remedy(section: dict[str, Any], words: str) -> None:
    more = {name: value for name, value in section.items() if name != "id"}
    assert words in refusal(vector, section["id"], "envpool", range(2), **more)


@needs_pool
@needs_box2d
def test_an_environment_of_ones_own_under_a_name_of_envpools_is_not_taken_for_it() -> None:
    name = "LunarLander-v3"
    before = gymnasium.registry[name]
    try:
        gymnasium.registry[name] = gymnasium.envs.registration.EnvSpec(id=name, entry_point=f"{HERE}:Walk")
        assert backends.resolve("auto", name, {}, lambda: make_env(EnvConfig(id=name))) == "gymnasium"
    finally:
        gymnasium.registry[name] = before


@needs_pool
def test_only_what_is_needed_of_envpool_is_imported() -> None:
    """All of it takes 100 MB and more than a second."""
    vector("CartPole-v1", "envpool", range(1)).close()
    assert "envpool.jumanji" not in sys.modules and "envpool.entry" not in sys.modules


@needs_pool
def test_the_pre_flight_tries_the_batch_and_says_where_wrappers_keep_it_away(tmp_path: Path) -> None:
    batch = {"id": "CartPole-v1", "backend": "envpool"}
    facts = tried(tmp_path, batch).facts
    assert facts is not None and facts.options == {"backend": "envpool"} and facts.notes == ()
    wrapped = batch | {"wrappers": ["gymnasium.wrappers:FlattenObservation"]}
    facts = tried(tmp_path, wrapped).facts
    assert facts is not None and facts.notes == (IN_TURN,)
    env = playing.vector(wrapped, 2)
    assert type(env._simulators).__name__ == "EnvsInTurn"
