"""The contract that every environment keeps, from the name to the arrays that an actor works with."""

from __future__ import annotations

import sys
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from actors.config import EnvConfig, EvaluatorConfig, run_seed
from actors.envs.foreign.actions import to_env_action
from actors.envs.make import EnvError, make_env, read_env, resolve_env
from actors.envs.vector import VectorEnv, VectorStep
from learner.algorithms.base import Needs
from tests.actors import toy_envs
from tests.actors.playing import TOYS, random_actions, refusal, spec_of, vector
from transport.experience import Continuous

needs_mario = pytest.mark.skipif(find_spec("nes_py") is None, reason="nes-py is not installed: pip install 'headrace[mario]'")
needs_atari = pytest.mark.skipif(find_spec("ale_py") is None, reason="ale-py is not installed: pip install 'headrace[atari]'")
needs_robot = pytest.mark.skipif(find_spec("pybullet") is None, reason="pybullet is not installed: pip install 'headrace[robot]'")
needs_pool = pytest.mark.skipif(find_spec("envpool") is None, reason="EnvPool is not installed: pip install 'headrace[envpool]'")
by_pool, by_vector = {"backend": "envpool"}, {"backend": "vector"}
EVERY = [
    pytest.param(EnvConfig(id="CartPole-v1"), id="CartPole"),
    pytest.param(EnvConfig(id="CartPole-v1", options=by_pool), id="CartPole of EnvPool", marks=needs_pool),
    pytest.param(EnvConfig(id="Pendulum-v1", max_episode_steps=12, options=by_pool), id="Pendulum of EnvPool", marks=needs_pool),
    pytest.param(EnvConfig(id="ALE/Pong-v5", max_episode_steps=12, options=by_vector), id="batched atari", marks=needs_atari),
    pytest.param(EnvConfig(id="mario", max_episode_steps=12), id="mario", marks=needs_mario),
    pytest.param(EnvConfig(id="ALE/Pong-v5", max_episode_steps=12), id="atari", marks=needs_atari),
    pytest.param(EnvConfig(id="snake"), id="snake"),
    pytest.param(EnvConfig(id="snake:dim=6,starting_blocks=2", max_episode_steps=9), id="small snake"),
    pytest.param(EnvConfig(id="robot", max_episode_steps=12), id="robot", marks=needs_robot),
    pytest.param(EnvConfig(id="robot:flat", max_episode_steps=12, options={"backend": "kinematic"}), id="kinematic robot"),
    pytest.param(EnvConfig(id=f"{TOYS}:Camera"), id="image"),
    pytest.param(EnvConfig(id=f"{TOYS}:Rover"), id="dict"),
    pytest.param(EnvConfig(id=f"{TOYS}:Cockpit"), id="several choices"),
]


def play(config: EnvConfig, seeds: list[int], steps: int) -> tuple[list[dict[str, np.ndarray]], list[VectorStep]]:
    """Every observation acted on, and every step, of a random but repeatable run."""
    spec = spec_of(config, Needs(n_step=3))
    env = VectorEnv(config, spec, len(seeds), seeds)
    random = np.random.default_rng(1)
    observations, results = [env.reset()], []
    try:
        for _ in range(steps):
            results.append(env.step(random_actions(spec, len(seeds), random)))
            observations.append(results[-1].observation)
    finally:
        env.close()
    return observations, results


@pytest.mark.parametrize("config", EVERY)
def test_the_simulator_gives_what_its_spaces_declare(config: EnvConfig) -> None:
    env = make_env(config)
    env.action_space.seed(0)
    observation, info = env.reset(seed=0)
    assert env.observation_space.contains(observation) and isinstance(info, dict)
    for _ in range(15):
        observation, reward, terminated, truncated, _ = env.step(env.action_space.sample())
        assert env.observation_space.contains(observation)
        assert np.isfinite(float(reward))
        if terminated or truncated:
            observation, _ = env.reset()
            assert env.observation_space.contains(observation)
    env.close()


@pytest.mark.parametrize("config", EVERY)
def test_a_run_repeats_by_its_seeds_rests_as_the_fields_say_and_ends_each_episode_once(config: EnvConfig) -> None:
    spec = spec_of(config)
    (observations, results), again = play(config, [7, 8], 40), play(config, [7, 8], 40)
    for seen, other in zip(observations, again[0], strict=True):
        assert list(seen) == [field.name for field in spec.fields]
        for field in spec.fields:
            assert seen[field.name].shape == (2, *field.shape) and seen[field.name].dtype == np.dtype(field.dtype)
            assert np.array_equal(seen[field.name], other[field.name])
    length, total, ended = np.zeros(2, int), np.zeros(2), 0
    for result, same in zip(results, again[1], strict=True):
        for part, other in zip(result[1:4], same[1:4], strict=True):  # reward, terminated, truncated
            assert part.shape == (2,) and part.dtype == (np.float32 if part is result.reward else bool)
            assert np.array_equal(part, other)
        assert all(result.final_observation[field.name].shape == (2, *field.shape) for field in spec.fields)
        length, total = length + 1, total + result.reward
        assert not (result.terminated & result.truncated).any()
        over = result.terminated | result.truncated
        # The first episode of an environment may be cut; it is not reported then.
        assert {episode.env for episode in result.episodes} <= set(np.flatnonzero(over).tolist())
        for episode in result.episodes:
            assert episode.length == length[episode.env]
            assert episode.total_reward == pytest.approx(total[episode.env], rel=1e-5)
        length[over], total[over] = 0, 0.0
        ended += int(over.sum())
    assert ended >= 2, "the run was too short to say anything"


@pytest.mark.parametrize(
    "config", [one for one in EVERY if one.id in ("CartPole", "mario", "small snake", "kinematic robot", "dict")]
)
def test_an_episode_that_takes_a_new_seed_begins_again_by_that_seed(config: EnvConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actors.envs.base.EnvironmentFamily.seed_steps", 1)
    spec, random = spec_of(config), np.random.default_rng(1)
    env = VectorEnv(config, spec, 2, [7, 8])
    env.reset()
    started = [(seed, None) for _, seed, _ in env.seeded]
    assert started == [(7, None), (8, None)]
    while len(started) < 4:
        observation = env.step(random_actions(spec, 2, random)).observation
        started += [(seed, {name: rows[k] for name, rows in observation.items()}) for k, seed, _ in env.seeded]
    env.close()
    seed, observed = started[-1]
    assert observed is not None and seed not in (7, 8)
    again = VectorEnv(config, spec, 1, [seed])
    first = again.reset()
    again.close()
    assert all(np.array_equal(rows[0], observed[name]) for name, rows in first.items())


@pytest.mark.parametrize("evaluation", [None, EvaluatorConfig()])
def test_a_seed_lasts_for_many_steps_and_an_evaluation_takes_no_other(evaluation: EvaluatorConfig | None) -> None:
    config = EnvConfig(id="CartPole-v1")
    env, seeded, steps = VectorEnv(config, spec_of(config), 1, [5], evaluation), [], 500
    env.reset()
    for step in range(1, steps):
        ended = env.step(np.zeros(1, np.int64)).episodes
        assert ended or not env.seeded
        seeded += [step] * len(env.seeded)
    env.close()
    if evaluation is None:
        assert [step // 200 for step in seeded] == [1, 2]
    else:
        assert seeded == []


def test_first_episodes_are_cut_at_different_steps_so_that_later_ones_do_not_stay_in_step_with_each_other() -> None:
    config = EnvConfig(id="Pendulum-v1")  # each of its episodes lasts 200 steps
    _, results = play(config, list(range(6)), 399)
    first_end = [next(t for t, result in enumerate(results) if result.truncated[k]) for k in range(6)]
    assert len(set(first_end)) == 6 and max(first_end) < 200
    reported = {(t, episode.env, episode.length) for t, result in enumerate(results) for episode in result.episodes}
    assert reported == {(end + 200, k, 200) for k, end in enumerate(first_end)}


def test_different_seeds_give_different_episodes() -> None:
    observations, _ = play(EnvConfig(id=f"{TOYS}:Camera"), [1, 2], 1)
    assert not np.array_equal(observations[0]["observation"][0], observations[0]["observation"][1])


def test_with_the_greatest_seed_of_a_run_environments_get_seeds_that_every_generator_takes() -> None:
    first = run_seed(2**31 - 1)
    env = vector(f"{TOYS}:OldGenerator", 2, first)
    starts = env.reset()["observation"].tolist()
    env.reseed([first + 2, first + 3])
    starts += env.reset()["observation"].tolist()
    assert len(set(map(tuple, starts))) == 4


def test_a_later_reset_draws_a_new_start_instead_of_repeating_the_seed() -> None:
    observations, results = play(EnvConfig(id="CartPole-v1"), [5], 200)
    starts = [observations[0]] + [result.observation for result in results if result.episodes]
    assert len(starts) >= 3
    assert len({start["observation"].tobytes() for start in starts}) == len(starts)


def test_ends_last_observations_scores_and_successes_are_the_environments() -> None:
    _, results = play(EnvConfig(id=f"{TOYS}:Camera"), [1, 2], 12)
    end, cut = results[4], results[11]  # the fifth step terminates; seven steps later the second episode is truncated
    assert end.terminated.all() and not end.truncated.any() and cut.truncated.all() and not cut.terminated.any()
    assert (end.final_observation["observation"][:, 2] == 5).all()  # channel 2 counts the steps
    assert (end.observation["observation"][:, 2] == 0).all()
    assert (end.observation["observation"][:, 1] == 1).all()  # channel 1 counts the episodes
    assert (cut.final_observation["observation"][:, 2] == 7).all()
    assert [(episode.score, episode.success) for episode in (end.episodes[0], cut.episodes[0])] == [(50.0, False), (70.0, True)]
    _, results = play(EnvConfig(id=f"{TOYS}:Rover"), [1], 10)  # says both at once
    assert results[9].terminated.all() and not results[9].truncated.any()
    (episode,) = results[9].episodes
    assert episode.score == episode.total_reward and episode.success is None


@pytest.mark.parametrize(
    ("reported", "success"),
    [
        (np.bool_(True), True),
        (np.array([True]), True),
        (1.0, True),
        ((True, False), False),
        (0, False),
        (float("nan"), False),
        ("no", False),
        ([], False),
        (None, None),
    ],
)
def test_only_a_number_that_is_not_zero_is_a_success(
    reported: object, success: bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_envs.Reports, "success", reported)
    _, results = play(EnvConfig(id=f"{TOYS}:Reports"), [0], 1)
    assert results[0].episodes[0].success is success


def test_arrays_that_were_handed_out_are_never_written_again() -> None:
    env = vector(f"{TOYS}:Camera", 2)
    held = [env.reset()]
    copies = [held[0]["observation"].copy()]
    for _ in range(12):
        result = env.step(np.zeros(2, np.int64))
        for seen in (result.observation, result.final_observation):
            held.append(seen)
            copies.append(seen["observation"].copy())
    assert all(np.array_equal(seen["observation"], copy) for seen, copy in zip(held, copies, strict=True))


@pytest.mark.parametrize(
    ("name", "limit", "steps"), [("CartPole-v1", 4, 4), (f"{TOYS}:Endless", 4, 4), (f"{TOYS}:Endless", 0, 300)]
)
def test_a_step_limit_truncates_and_without_one_an_episode_goes_on(name: str, limit: int, steps: int) -> None:
    _, results = play(EnvConfig(id=name, max_episode_steps=limit), [0], steps)
    assert [bool(result.truncated[0]) for result in results] == [False] * (steps - 1) + [limit > 0]


def test_an_environment_that_cannot_be_closed_twice_is_said_and_the_others_are_closed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_envs.OneWindow, "is_open", True)
    monkeypatch.setattr(toy_envs.OneWindow, "closed", 0)
    vector(f"{TOYS}:OneWindow", 3).close()
    assert toy_envs.OneWindow.closed == 4  # the probe, too
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3 and all("was not closed: RuntimeError: not connected" in line for line in said)


def test_actions_reach_the_environment_in_its_own_terms() -> None:
    camera, rover = make_env(EnvConfig(id=f"{TOYS}:Camera")), make_env(EnvConfig(id=f"{TOYS}:Rover"))
    assert to_env_action(camera.action_space, np.int64(2)) == 7
    assert type(to_env_action(camera.action_space, np.int32(2))) is type(camera.action_space.sample())
    action = to_env_action(rover.action_space, np.array([-3.0, 1.5], np.float64))
    assert action.dtype == np.float32
    assert action.tolist() == [[-1.0], [1.5]]
    assert spec_of(EnvConfig(id=f"{TOYS}:Rover")).action == Continuous((-1.0, -2.0), (1.0, 2.0))


@pytest.mark.parametrize(
    ("name", "asked", "given"),
    [
        ("Drawn", None, None),
        ("Drawn", "rgb_array", "rgb_array"),
        ("Drawn", "human", "rgb_array"),
        ("drawn", "rgb_array", "rgb_array"),
        ("Endless", "rgb_array", None),
    ],
)
def test_a_factory_that_takes_a_render_mode_gets_one_that_it_has(name: str, asked: str | None, given: str | None) -> None:
    env = make_env(EnvConfig(id=f"{TOYS}:{name}"), asked)
    assert env.render_mode == given


def test_a_factory_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_toys.py").write_text("from tests.actors.toy_envs import Endless\n\ndef build():\n    return Endless()\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nowhere", *__import__("sys").path])
    assert make_env(EnvConfig(id="my_toys:build")).action_space.n == 2  # type: ignore[attr-defined]


def test_a_module_may_register_the_id_instead_of_holding_a_factory() -> None:
    assert make_env(EnvConfig(id=f"{TOYS}:HeadraceToy-v0")).unwrapped.__class__.__name__ == "Endless"


def test_a_registered_id_that_needs_an_argument_is_refused_by_its_option() -> None:
    with pytest.raises(EnvError, match=f"^{TOYS}:HeadraceNeedy-v0 needs --env.size$"):
        resolve_env(read_env({"id": f"{TOYS}:HeadraceNeedy-v0"}))
    for section in ({"id": f"{TOYS}:HeadraceNeedy-v0", "size": 3}, {"id": f"{TOYS}:HeadraceServed-v0"}):
        assert make_env(resolve_env(read_env(section))).unwrapped.size == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("my_roads", "my_roads:FUNCTION"),
        ("my_roads.make_env", "my_roads:make_env"),
        ("my_roads.envs", "my_roads.envs:FUNCTION"),
        ("my_roads.envs.Road", "my_roads.envs:Road"),
        ("my_roads/envs.py", "my_roads.envs:FUNCTION"),
        ("road-v0", "my_roads:road-v0"),
    ],
)
def test_an_id_that_lacks_its_module_is_answered_with_the_whole(
    typed: str, meant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "my_roads"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')\nregister(id='road-v0')\n")
    (package / "envs.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"my_roads": ["my-roads"]})
    with pytest.raises(EnvError, match=f"unknown environment '{typed}'; did you mean {meant}[?]$"):
        make_env(EnvConfig(id=typed))


@pytest.mark.parametrize(
    ("typed", "package"),
    [("FetchReach-v2", "gymnasium_robotics"), ("MiniGrid-Empty-5x5-v0", "minigrid"), ("highway-fast-v0", "highway_env")],
)
def test_a_well_known_id_is_answered_with_the_package_that_registers_it(
    typed: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.metadata.packages_distributions", dict)
    monkeypatch.setattr("actors.envs.foreign.families.find_spec", lambda name: None)
    told = f"{package} registers such ids; pip install {package.replace('_', '-')}, then --env {package}:{typed}$"
    with pytest.raises(EnvError, match=f"unknown environment '{typed}': {told}"):
        make_env(EnvConfig(id=typed))
    monkeypatch.setattr("actors.envs.foreign.families.find_spec", lambda name: object() if name == package else None)
    with pytest.raises(EnvError, match=f"did you mean {package}:{typed}[?]$"):
        make_env(EnvConfig(id=typed))


@pytest.mark.parametrize("typed", ["SpaceInvadersNoFrameskip-v4", "SpaceInvaders-v4", "SpaceInvaders-ramDeterministic-v0"])
def test_older_ids_of_atari_games_are_answered_with_the_one_of_today(typed: str, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ale_py")
    monkeypatch.delitem(gymnasium.registry, typed, raising=False)  # importing ale_py registers it
    with pytest.raises(EnvError, match=f"unknown environment '{typed}'; did you mean ALE/SpaceInvaders-v5[?]$"):
        make_env(EnvConfig(id=typed))


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EnvConfig(id="cartpole-v1"), ["unknown environment", "did you mean CartPole-v1"]),
        (EnvConfig(id="CartPole-v7"), ["unknown environment", "CartPole-v1"]),
        (EnvConfig(id="marioo"), ["did you mean mario"]),
        (EnvConfig(id="no such thing"), ["unknown environment"]),
        (EnvConfig(id="HalfCheetah-v3"), ["HalfCheetah-v3 cannot be imported: ", "moved to the gymnasium-robotics project"]),
        (EnvConfig(id="no_such_module:make"), ["no module 'no_such_module'"]),
        (EnvConfig(id="./my/toys.py:make"), ["./my/toys.py:make: name the module, not its file: my.toys:make"]),
        (EnvConfig(id=f"{TOYS}:Camra"), ["has no Camra", "did you mean Camera"]),
        (EnvConfig(id=f"{TOYS}:TOYS_OF_MINE"), ["has no TOYS_OF_MINE"]),
        (EnvConfig(id=f"{TOYS}:not_an_env"), ["returned a object, not a gymnasium.Env"]),
        (EnvConfig(id=f"{TOYS}:several"), ["VectorEnv, not a gymnasium.Env: return one environment; --actors.envs-per-actor"]),
        (EnvConfig(id=f"{TOYS}:of_old_gym"), ["not a gymnasium.Env", "of the package gym", "inherit from gymnasium.Env"]),
        (EnvConfig(id="CartPole-v1", options={"skip": 4}), ["env.skip", "only mario and ALE/"]),
        (EnvConfig(id="CartPole-v1", options={"actions": "simple"}), ["env.actions", "only mario"]),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line_that_names_the_fix(config: EnvConfig, words: list[str]) -> None:
    message = refusal(make_env, config)
    assert all(word in message for word in words), message


def test_an_older_version_of_an_id_is_not_looked_for_in_gym(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gym").mkdir()
    (tmp_path / "gym" / "__init__.py").write_text("register(id='LunarLander-v2')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("importlib.metadata.packages_distributions", lambda: {"gym": ["gym"]})
    with pytest.raises(EnvError, match="unknown environment 'LunarLander-v2' .did you mean LunarLander-v3"):
        make_env(EnvConfig(id="LunarLander-v2"))


def test_a_package_that_lacks_a_name_of_its_own_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_lacking").mkdir()
    (tmp_path / "my_lacking" / "__init__.py").write_text("from my_lacking import nothing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(EnvError, match="^my_lacking:make cannot be imported: cannot import name 'nothing' from"):
        make_env(EnvConfig(id="my_lacking:make"))


@pytest.mark.parametrize(
    ("name", "extra"),
    [("ALE/Pong-v5", "[atari]'"), ("LunarLander-v3", "[box2d]'"), ("Hopper-v5", "[mujoco]'")],
)
def test_a_missing_simulator_names_what_to_install(name: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [module for module in sys.modules if module.startswith(("gymnasium.envs.box2d", "gymnasium.envs.mujoco"))]:
        monkeypatch.delitem(sys.modules, module)  # another test has imported it
    for package in ("ale_py", "Box2D", "mujoco"):
        monkeypatch.setitem(sys.modules, package, None)
    assert extra in refusal(make_env, EnvConfig(id=name)).replace('"', "'")


@pytest.mark.parametrize(("options", "last"), [({}, (3, 1, 41, 1)), ({"seed": 5, "size": 2}, (3, 1, 5, 2))])
def test_a_factory_receives_the_place_of_its_environment_where_it_asks_for_it(
    options: dict[str, int], last: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(toy_envs.OneAtATime, "ports", set())
    config = resolve_env(EnvConfig(id=f"{TOYS}:numbered", options=options))
    made: list[tuple[int, ...]] = []
    numbered = toy_envs.numbered
    monkeypatch.setattr(
        toy_envs, "numbered", wraps(numbered)(lambda **given: (env := numbered(**given), made.append(env.numbers))[0])
    )
    vector(config, 2, 40, worker=3).close()
    assert made[-1] == last and made[0][:2] == (0, 0)


def form(action: object) -> object:
    """Types, keys in their order, shapes and dtypes."""
    if isinstance(action, dict):
        return [(key, form(part)) for key, part in action.items()]
    if isinstance(action, tuple):
        return tuple(form(part) for part in action)
    return type(action), getattr(action, "shape", None), getattr(action, "dtype", None)


@pytest.mark.parametrize("name", ["Camera", "ManyChoices", "Switches", "Rover", "Keyboard", "Cockpit", "Limbs"])
def test_an_environment_receives_actions_of_just_the_form_that_its_space_samples(name: str) -> None:
    config, taken = EnvConfig(id=f"{TOYS}:{name}"), list[object]()

    class Recorded(gymnasium.Wrapper):
        def step(self, action: object) -> Any:
            taken.append(action)
            return self.env.step(action)

    env = vector(config, 2, make=lambda *_, **__: Recorded(make_env(config)))
    env.reset()
    for number in range(3):
        env.step(random_actions(spec_of(config), 2, np.random.default_rng(number)))
    space = env.example.action_space
    assert len(taken) == 6 and all(space.contains(action) and form(action) == form(space.sample()) for action in taken)
