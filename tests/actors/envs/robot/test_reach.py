"""Reaching, the same with either backend: spaces, steps, ends, rewards."""

from __future__ import annotations

import subprocess
import sys
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import actors.envs.robot.registration  # noqa: F401
from actors.config import EnvConfig, EvaluatorConfig
from actors.envs.make import make_env, open_family, resolve_env
from actors.envs.robot import family, rewards
from actors.envs.robot.arm.kinematics import solve
from actors.envs.robot.arm.targets import TIERS
from actors.envs.robot.backends.base import STEP_SECONDS, STEPS_PER_SECOND
from actors.envs.robot.env import ReachEnv
from actors.envs.robot.reach import HOLD_STEPS, SPEED_SHARE, ReachSimulators
from actors.errors import EnvError
from actors.evaluation import demo
from tests.actors.envs.robot import arms
from tests.actors.playing import refusal, spec_of, vector

needs_pybullet = pytest.mark.skipif(
    find_spec("pybullet") is None, reason="pybullet is not installed: pip install 'headrace[robot]'"
)
pytestmark = pytest.mark.xdist_group("the targets of the robot")  # one worker samples them
BACKENDS = [pytest.param("kinematic"), pytest.param("pybullet", marks=needs_pybullet)]
either = pytest.mark.parametrize("backend", BACKENDS)


def started(backend: str, count: int = 4, **options: Any) -> tuple[ReachEnv, ReachSimulators, dict[str, np.ndarray]]:
    env = ReachEnv(backend=backend, **options)
    made = env.simulators(count)
    return env, made, made.reset(np.arange(count), list(range(count)))


def towards(made: ReachSimulators, share: float = 1.0) -> np.ndarray:
    """Actions that lead to joints known to reach the targets, when the flange starts where it is."""
    fastest = SPEED_SHARE * made._kinematics.arm.speed
    goal, _ = solve(made._kinematics, made._q, made.target, 50, 0.0)
    return np.clip((goal - made._q) / STEP_SECONDS / fastest, -share, share)


@either
@pytest.mark.parametrize("name", ["headrace/FanucReach-v0", "headrace/FanucReachFlat-v0"])
def test_gymnasiums_checker_has_nothing_against_it(name: str, backend: str) -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*(infinity|flattened|different seeds|already unwrapped).*")  # advice
        env = gymnasium.make(name, backend=backend, render_mode="rgb_array")
        check_env(env.unwrapped)
    env.reset(seed=0)
    picture = env.render()
    assert isinstance(picture, np.ndarray) and picture.dtype == np.uint8 and picture.ndim == 3 and len(np.unique(picture)) > 5
    env.close()


def test_registering_imports_no_simulator() -> None:
    code = "import actors.envs.robot.registration, actors.envs.robot.env, sys; sys.exit('pybullet' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@either
@pytest.mark.parametrize(("form", "size"), [("robot", 24), ("robot:flat", 38)])
def test_an_arm_alone_is_one_of_many(form: str, size: int, backend: str) -> None:
    env = make_env(EnvConfig(id=form, options={"backend": backend}))
    made = env.unwrapped.simulators(3)  # type: ignore[attr-defined]
    seen = made.reset(np.arange(3), [5, 9, 7])
    observation, _ = env.reset(seed=9)
    random = np.random.default_rng(0)

    def same(one: Any, all_of_them: dict[str, np.ndarray]) -> bool:
        parts = one if isinstance(one, dict) else {"observation": one}
        return all(np.allclose(parts[name], rows[1], atol=1e-5) for name, rows in all_of_them.items())

    assert seen["observation"].shape == (3, size) and same(observation, seen)
    for _ in range(10):
        actions = random.uniform(-1, 1, (3, 6)).astype(np.float32)
        observation, reward, terminated, truncated, info = env.step(actions[1])
        outcome = made.step(actions)
        assert env.observation_space.contains(observation) and same(observation, outcome.observation)
        assert reward == pytest.approx(float(outcome.reward[1]), abs=1e-4)
        assert (terminated, truncated) == (outcome.terminated[1], outcome.truncated[1])
        assert info["score"] == pytest.approx(outcome.score[1], abs=1e-4) and info["group"] == outcome.group[1] in TIERS
    made.close()
    env.close()


@either
def test_what_is_seen_is_what_is(backend: str) -> None:
    env, made, _ = started(backend)
    actions = np.random.default_rng(1).uniform(-1, 1, (4, 6))
    for _ in range(3):
        seen = made.step(actions).observation
    kinematics, own = env.kinematics, seen["observation"]
    q = np.arctan2(own[:, :6], own[:, 6:12]).astype(np.float64)
    assert np.allclose(kinematics.flange(q), seen["achieved_goal"], atol=1e-5)
    assert np.allclose(own[:, 12:18], SPEED_SHARE * actions, atol=0.01)  # velocity, as a share of the datasheet's
    assert np.allclose(own[:, 18:24], actions, atol=1e-6)
    assert np.allclose(seen["desired_goal"], made.target, atol=1e-6)
    made.close()


def test_the_flat_form_holds_the_goal_form_and_the_way_to_go() -> None:
    _, made, goals = started("kinematic")
    _, _, flat = started("kinematic", flat=True)
    away = goals["desired_goal"] - goals["achieved_goal"]
    near = away / (np.linalg.norm(away, axis=1, keepdims=True) + 0.05)
    azimuth = np.arctan2(goals["desired_goal"][:, 1], goals["desired_goal"][:, 0])
    first = np.arctan2(goals["observation"][:, 0], goals["observation"][:, 6])
    turn = np.stack([azimuth, azimuth - first], axis=1)
    parts = (goals["observation"], goals["achieved_goal"], goals["desired_goal"], away, near, turn)
    assert np.allclose(flat["observation"], np.concatenate(parts, axis=1), atol=1e-6)


@needs_pybullet
def test_both_backends_bring_the_flange_to_the_same_place() -> None:
    """Within 3 mm after a second and a half of changing, commanded velocities: motors follow as good as at once."""
    (_, moved, _), (_, turned, _) = started("pybullet"), started("kinematic")
    random = np.random.default_rng(3)
    for step in range(36):
        if step % 6 == 0:
            actions = random.uniform(-0.3, 0.3, (4, 6))
        moved.step(actions)
        turned.step(actions)
    assert np.linalg.norm(moved.flange - turned.flange, axis=1).max() < 0.003
    assert np.abs(moved._velocity - turned._velocity).max() < 0.02 * np.abs(turned._velocity).max()
    moved.close()


@either
def test_joints_stop_at_their_limits(backend: str) -> None:
    env, made, _ = started(backend, 2)
    wrist = np.tile([0.0, 0, 0, 1, 1, 1], (2, 1)) * [[1.0], [-1.0]]
    for _ in range(90):
        made.step(wrist)
    arm = env.arm
    assert (made._q < arm.upper + 1e-3).all() and (made._q > arm.lower - 1e-3).all()
    assert np.allclose(made._q[:, 4], [arm.upper[4], arm.lower[4]], atol=0.02)
    made.close()


@either
def test_the_floor_stops_the_arm(backend: str) -> None:
    _, made, _ = started(backend, 1)
    for _ in range(60):
        made.step(np.array([[0, 0.5, 0, 0, 0, 0]]))  # the upper arm forward and down
    assert -0.01 < made.flange[0, 2] < 0.2
    made.close()


def test_a_kinematic_step_into_the_arm_itself_does_not_happen() -> None:
    env, made, _ = started("kinematic", 1)
    for step in range(90):
        before = made._q.copy()
        wrist, forearm = 0.5 * (step >= 18), -0.5 * (step < 18)  # the forearm down, then the wrist to the base
        made.step(np.array([[0, wrist, forearm, 0, 0, 0]]))
        assert env.kinematics.clear(env.kinematics.pose(made._q)).all()
    assert np.array_equal(before, made._q) and not made._velocity.any() and made._q[0, 1] < env.arm.upper[1] - 0.1


@either
def test_the_dense_form_ends_at_the_target_and_pays_for_every_step_before(backend: str) -> None:
    _, made, _ = started(backend, 8, tier="easy")
    made.reset(np.arange(8), [None] * 8)
    total, ended, at_once = np.zeros(8), np.zeros(8, bool), np.zeros(8, bool)
    for step in range(60):
        outcome = made.step(towards(made))
        success = np.asarray(outcome.success)
        if step == 0:
            at_once = success  # depends on rounding, which differs between processors
        assert ((outcome.reward < 0) == ~success)[~ended].all()
        assert (~outcome.terminated | success).all()
        ended |= outcome.terminated
        total += outcome.reward * ~ended
    assert ended.mean() >= 0.75 and ((total < 0) | at_once).all() and at_once.sum() <= 1
    made.close()


def test_passing_through_the_target_at_speed_is_not_the_end_but_staying_is() -> None:
    env, made, _ = started("kinematic", 1, tolerance=0.2)
    sweep = np.array([[0.6, 0, 0, 0, 0, 0]])
    radius, angle = np.hypot(*made.flange[0, :2]), np.arctan2(made.flange[0, 1], made.flange[0, 0])
    ahead = angle + np.radians(25)
    made.set_target(0, np.array([radius * np.cos(ahead), radius * np.sin(ahead), made.flange[0, 2]]), 0.2, 0)
    told = []
    for _ in range(HOLD_STEPS + 4):
        outcome = made.step(sweep)
        told.append((bool(outcome.success[0]), bool(outcome.terminated[0])))
        if outcome.terminated[0]:
            break
    inside = [success for success, _ in told].index(True)
    assert told[inside:] == [(True, False)] * (HOLD_STEPS - 1) + [(True, True)]
    made.reset(np.zeros(1, np.int64), [None])
    made.set_target(0, made.flange[0].copy(), 0.2, 0)
    assert made.step(np.zeros((1, 6))).terminated[0]  # within, and at rest


@either
def test_the_sparse_form_goes_on_at_the_target_until_its_time_is_up(backend: str) -> None:
    _, made, _ = started(backend, 1, reward="sparse", max_steps=6)
    made.set_target(0, made.flange[0].copy(), 0.02, 0)
    for step in range(6):
        outcome = made.step(np.zeros((1, 6)))
        assert (outcome.reward[0], outcome.success[0], outcome.terminated[0]) == (0, True, False)
        assert outcome.truncated[0] == (step == 5)
    made.close()


@pytest.mark.parametrize(("reward", "steps"), [("dense", 100), ("sparse", 50)])
def test_an_episode_has_a_time_limit(reward: str, steps: int) -> None:
    _, made, _ = started("kinematic", 1, reward=reward)
    still = [made.step(np.zeros((1, 6))).truncated[0] for _ in range(steps)]
    assert still == [False] * (steps - 1) + [True]


@pytest.mark.parametrize("kind", rewards.REWARDS)
def test_a_reward_computed_from_goals_is_what_the_step_gave(kind: str) -> None:
    env, made, _ = started("kinematic", 32, reward=kind, tolerance=0.1, curriculum=kind == "dense")
    for _ in range(20):
        outcome = made.step(towards(made))
    achieved, desired = (outcome.observation[name] for name in ("achieved_goal", "desired_goal"))
    infos = [{"tolerance": float(tolerance)} for tolerance in made.tolerance]
    assert np.allclose(env.compute_reward(achieved, desired, infos), outcome.reward, atol=1e-5)
    full = made.tolerance == 0.1
    assert full.any() and np.allclose(env.compute_reward(achieved, desired, {})[full], outcome.reward[full], atol=1e-5)  # type: ignore[index]
    one = env.compute_reward(achieved[0], desired[0], infos[0])
    assert isinstance(one, float) and one == pytest.approx(float(outcome.reward[0]), abs=1e-5)


def test_the_dense_reward_steepens_near_the_target_and_is_nothing_within() -> None:
    apart = np.array([1.0, 0.5, 0.1, 0.03, 0.02, 0.0])
    found = rewards.reward("dense", apart, 0.02)
    assert np.allclose(found[:4], -(apart[:4] + 0.25 * apart[:4] / (apart[:4] + 0.01))) and not found[4:].any()
    assert (np.diff(found) >= 0).all()
    assert rewards.reward("sparse", apart, 0.02).tolist() == [-1, -1, -1, -1, 0, 0]


@either
def test_a_target_may_be_given(backend: str) -> None:
    env = ReachEnv(backend=backend, curriculum=True)
    observation, info = env.reset(seed=1, options={"target": (0.4, 0.3, 0.5)})
    assert np.allclose(observation["desired_goal"], (0.4, 0.3, 0.5)) and info["group"] == "easy"
    assert info["tolerance"] == 0.02 and info["level"] == -1
    with pytest.raises(EnvError, match="out of reach"):
        env.reset(options={"target": (3, 0, 0)})
    env.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"curriculum": True, "reward": "sparse"}, "curriculum needs the dense reward"),
        ({"tolerance": 0.0}, "tolerance must be above 0 and below 1 (metres), not 0"),
        ({"tolerance": -0.1}, "not -0.1"),
        ({"tolerance": float("nan")}, "not nan"),
        ({"tier": "hrad"}, "no tier 'hrad'; did you mean hard?"),
        ({"reward": "spare"}, "did you mean sparse?"),
        ({"backend": "bullet"}, "did you mean pybullet?"),
        ({"backend": "kinematic", "render_mode": "human"}, "the kinematic backend has no render mode human; it has rgb_array"),
        ({"urdf": "nowhere.urdf"}, "cannot read the URDF nowhere.urdf"),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(options: dict[str, Any], words: str) -> None:
    assert words in refusal(ReachEnv, **options)


@pytest.mark.parametrize(
    ("env_id", "options", "words"),
    [
        ("robot:goal", {"backend": "kinematic"}, "unknown form; write robot (goals) or robot:flat"),
        ("robot", {"backend": "retro"}, "robot has pybullet, kinematic, auto, not retro"),
        ("robot", {"backend": "kinematic", "arm": "0" * 32}, "has changed since the run began"),
    ],
)
def test_options_that_do_not_fit_are_refused(env_id: str, options: dict[str, Any], words: str) -> None:
    assert words in refusal(make_env, EnvConfig(id=env_id, options=options))


def test_quantising_what_has_no_bounds_is_refused() -> None:
    assert "finite bounds" in refusal(spec_of, EnvConfig(id="robot:flat", quantise=True, options={"backend": "kinematic"}))


def test_a_run_keeps_its_arm_and_is_told_when_the_file_has_changed(tmp_path: Path) -> None:
    path = arms.written(tmp_path, arms.own_text())
    begun = EnvConfig(id="robot", options={"backend": "kinematic", "urdf": str(path)})
    kept = open_family(begun).pin_options()
    assert kept.urdf == str(path)
    config = EnvConfig(id="robot", options=kept)
    make_env(config).close()
    path.write_text(arms.own_text().replace("0.330", "0.331"))
    assert open_family(config).pin_options() == kept
    with pytest.raises(EnvError, match=r"arm.urdf has changed since the run began, .*--fresh$"):
        make_env(config)


@either
def test_a_users_arm_reaches_too(backend: str, tmp_path: Path) -> None:
    env, made, _ = started(backend, 2, urdf=str(arms.written(tmp_path, arms.urdf())))
    ended = np.zeros(2, bool)
    for _ in range(100):
        ended |= made.step(towards(made, 0.5)).terminated
    assert env.arm.name == "odd" and ended.any()
    made.close()


@either
def test_episodes_tell_their_tier_and_how_near_they_came(backend: str) -> None:
    env = vector(EnvConfig(id="robot", max_episode_steps=5, options={"backend": backend}), 8)
    env.reset()
    episodes = [episode for _ in range(5) for episode in env.step(np.zeros((8, 6), np.float32)).episodes]
    assert len(episodes) == 8 and {episode.group for episode in episodes} <= set(TIERS)
    assert all(0 < episode.score < 1.5 and episode.level == -1 and episode.length == 5 for episode in episodes)
    env.close()


def test_the_curriculums_level_is_set_from_outside_and_told_of_every_episode() -> None:
    env = vector(EnvConfig(id="robot", max_episode_steps=1, options={"backend": "kinematic", "curriculum": True}), 64)
    assert env.levels == 5 and vector(EnvConfig(id="robot", options={"backend": "kinematic"}), 1).levels == 0
    env.reset()
    still = np.zeros((64, 6), np.float32)
    assert {episode.level for episode in env.step(still).episodes} == {-1, 0}
    env.set_level(2)
    assert {episode.level for episode in env.step(still).episodes} == {-1, 0}  # these had begun
    assert {episode.level for episode in env.step(still).episodes} == {-1, 2}
    with pytest.raises(ValueError, match="level 5 of 5"):
        env.set_level(5)


def test_evaluation_uses_held_out_targets() -> None:
    config = EnvConfig(id="robot", max_episode_steps=1, options={"backend": "kinematic", "curriculum": True})
    env = vector(config, 16, evaluation=EvaluatorConfig())
    known = ReachEnv(backend="kinematic").targets
    held_out = {row.tobytes() for row in known.positions[known.training :]}
    assert env.levels == 0
    seen = env.reset()["desired_goal"]
    assert all(row.tobytes() in held_out for row in seen)


def test_a_wrapper_sees_every_step() -> None:
    from actors.evaluation.demo import Filmed

    shown: list[np.ndarray] = []
    config = EnvConfig(id="robot:flat", max_episode_steps=3, options={"backend": "kinematic"})

    def make(config: EnvConfig, *, evaluation: bool) -> gymnasium.Env:
        return Filmed(make_env(config, "rgb_array", evaluation), shown.append)

    env = vector(config, 1, evaluation=EvaluatorConfig(), make=make)
    env.reset()
    for _ in range(3):
        step = env.step(np.ones((1, 6), np.float32))
    assert len(shown) == 4 and step.episodes[0].group in TIERS
    assert not np.array_equal(shown[0], shown[-1])


def test_what_is_shown_of_the_robot_is_slower_than_it() -> None:
    """A movement takes about a second."""
    env = ReachEnv(backend="kinematic")
    assert demo.rate(env, 1) <= STEPS_PER_SECOND / 2
    env.close()


def test_without_pybullet_the_robot_has_its_other_backend_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for there, backend in ((True, "pybullet"), (False, "kinematic")):
        monkeypatch.setattr(family, "find_spec", lambda name, there=there: there or None)
        settled = resolve_env(EnvConfig(id="robot"))
        assert settled.options.backend == backend, "auto, and the run keeps it"
        notes = open_family(settled).notes()
        assert notes == () if there else "without physics, since PyBullet is not installed" in notes[0]
    with pytest.raises(EnvError, match="robot needs pybullet, which is not installed"):
        make_env(EnvConfig(id="robot", options={"backend": "pybullet"}))
