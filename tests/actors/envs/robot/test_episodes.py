"""Episodes of the robot: targets, starts and levels, sampled for each arm by its own generator."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest

from actors.envs.robot import episodes as module
from actors.envs.robot.arm.kinematics import solve
from actors.envs.robot.arm.targets import TIERS, Targets, load_targets
from actors.envs.robot.episodes import AHEAD, NOISE_METRES, EpisodeSampler, Level, full_task, levels
from tests.actors.envs.robot import arms

pytestmark = pytest.mark.xdist_group("the targets of the robot")  # one worker samples them
KINEMATICS = arms.own()
ALL = full_task("all", 0.02)


@cache
def the_targets() -> Targets:
    return load_targets(KINEMATICS)


def sampler(count: int = 2, task: Level = ALL, curriculum: bool = False, evaluation: bool = False) -> EpisodeSampler:
    made = EpisodeSampler(KINEMATICS, the_targets(), task, count, curriculum, evaluation)
    for k in range(count):
        made.seed(k, k)
    return made


def nearest_target(position: np.ndarray) -> int:
    return int(np.abs(the_targets().positions - position).sum(1).argmin())


def test_a_training_target_is_near_a_cached_one_and_the_solver_reaches_it() -> None:
    targets = the_targets()
    source = sampler(8)
    episodes = [source.next(np.arange(8)) for _ in range(AHEAD)]
    position = np.concatenate([one.target for one in episodes])
    index = np.array([nearest_target(one) for one in position])
    assert (np.abs(targets.positions[index] - position).max(1) <= 2 * NOISE_METRES).all()
    moved = np.linalg.norm(targets.positions[index] - position, axis=1) > 1e-6
    assert moved.mean() > 0.9
    _, reached = solve(KINEMATICS, targets.joints[index], position, 40, 0.0)
    assert reached.mean() > 0.98  # the nearest known is not always the one that it was moved from


def test_a_target_has_no_noise_where_the_solver_does_not_reach_the_noisy_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "solve", lambda kinematics, start, target, *rest: (start, np.zeros(len(start), bool)))
    position = sampler(1).next(np.zeros(1, np.int64)).target[0]
    assert np.allclose(the_targets().positions[nearest_target(position)], position, atol=1e-12)


def test_evaluation_uses_targets_that_training_never_uses_and_adds_no_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    targets = the_targets()
    evaluation, training = sampler(4, evaluation=True), sampler(4)
    for _ in range(40):
        for position in evaluation.next(np.arange(4)).target:
            index = nearest_target(position)
            assert index >= targets.training and np.allclose(targets.positions[index], position, atol=1e-12)
    monkeypatch.setattr(module, "solve", lambda kinematics, start, target, *rest: (start, np.zeros(len(start), bool)))  # no noise
    used = [nearest_target(position) for _ in range(40) for position in training.next(np.arange(4)).target]
    assert max(used) < targets.training


def test_the_episodes_of_an_arm_depend_on_its_seed_alone() -> None:
    def sampled(seeds: list[int], k: int) -> list[bytes]:
        made = EpisodeSampler(KINEMATICS, the_targets(), ALL, len(seeds), False, False)
        for number, seed in enumerate(seeds):
            made.seed(number, seed)
        return [made.next(np.array([k])).target.tobytes() for _ in range(2 * AHEAD + 1)]

    assert sampled([11], 0) == sampled([5, 11], 1) == sampled([11, 2, 3], 0) != sampled([12], 0)


def test_starts_are_near_home() -> None:
    start = np.concatenate([sampler(8).next(np.arange(8)).start for _ in range(3)])
    assert (np.abs(start) <= 0.2).all() and (np.abs(start) > 0.1).any()


@pytest.mark.parametrize("tier", TIERS)
def test_targets_are_of_the_tasks_tier(tier: str) -> None:
    episodes = sampler(8, full_task(tier, 0.02), evaluation=True).next(np.arange(8))
    assert {TIERS[int(number)] for number in episodes.tier} == {tier}


def test_the_levels_of_a_task_end_with_it_and_have_no_smaller_tolerance() -> None:
    for task in (ALL, full_task("hard", 0.005), full_task("easy", 0.05), full_task("all", 0.2)):
        way = levels(task)
        assert way[-1] == task and len(set(way)) == len(way)
        assert all(level.tolerance >= task.tolerance and set(level.tiers) <= set(task.tiers) for level in way)
        assert sorted((level.tolerance for level in way), reverse=True) == [level.tolerance for level in way]
    assert levels(full_task("all", 0.005))[0] == Level(("easy",), 0.10) and len(levels(full_task("all", 0.005))) == 7


def test_a_level_sets_tiers_and_tolerance_but_a_fifth_stays_at_the_full_task() -> None:
    source = sampler(8, curriculum=True)
    episodes = [source.next(np.arange(8)) for _ in range(100)]
    level, tier, tolerance = (np.concatenate([getattr(one, name) for one in episodes]) for name in ("level", "tier", "tolerance"))
    assert set(level) == {-1, 0} and 0.15 < (level == -1).mean() < 0.25
    assert set(tier[level == 0]) == {0} and set(tier[level == -1]) == {0, 1, 2}
    assert set(tolerance[level == 0]) == {0.10} and set(tolerance[level == -1]) == {0.02}


def test_a_new_level_takes_effect_with_the_next_episode() -> None:
    source = sampler(8, curriculum=True)
    source.next(np.arange(8))
    source.set_level(3)
    episodes = source.next(np.arange(8))
    assert set(episodes.level) <= {-1, 3} and set(episodes.tolerance[episodes.level == 3]) == {0.05}
    source.set_level(len(source.levels) - 1)
    assert set(source.next(np.arange(8)).level) == {-1}
    with pytest.raises(ValueError, match="level 9 of 5"):
        source.set_level(9)


def test_there_is_no_curriculum_in_evaluation() -> None:
    assert sampler(1, curriculum=True, evaluation=True).levels == (ALL,)
