"""One arm with Gymnasium's API, in the goal form or flat. The same code steps many arms at once."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.robot import rewards
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import TIERS, Targets, check_reachable, load_targets, tier_of
from actors.envs.robot.arm.urdf import OWN_URDF, read_urdf
from actors.envs.robot.backends.base import SHOWN_PER_SECOND, Arms, KinematicArms
from actors.envs.robot.episodes import EpisodeSampler, full_task
from actors.envs.robot.picture import describe, draw_workspace
from actors.envs.robot.reach import FLAT, GOAL, OBSERVED, ReachSimulators
from actors.errors import EnvError
from transport.names import nearest

TOLERANCE = 0.02  # metres
BACKENDS = ("pybullet", "kinematic")
# If a window is asked for without a display, PyBullet ends the process instead of reporting an error.
DISPLAY = not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
RENDER_MODES = {"pybullet": ("rgb_array", "human") if DISPLAY else ("rgb_array",), "kinematic": ("rgb_array",)}


class ReachEnv(gymnasium.Env):
    """The task: bring the flange of an arm to a target. reach.py describes episodes and observations, rewards.py the rewards.

    info: is_success, score (metres to the target), group (the target's tier), tolerance, level.
    """

    metadata = {"render_modes": list(RENDER_MODES["pybullet"]), "render_fps": SHOWN_PER_SECOND}

    def __init__(
        self,
        urdf: str = "",
        flat: bool = False,
        reward: str = "dense",
        tolerance: float = TOLERANCE,
        tier: str = "all",
        backend: str = "pybullet",
        curriculum: bool = False,
        max_steps: int = 0,
        render_mode: str | None = None,
        evaluation: bool = False,
    ) -> None:
        """`urdf`: a file; empty: the LR Mate 200iD. `max_steps` truncates an episode; 0: 100 with the dense reward, 50 with the
        sparse. `evaluation` uses the evaluation targets, without noise and without curriculum.

        Raises EnvError for a wrong argument or URDF file.
        """
        if not 0 < tolerance < 1:
            raise EnvError(f"tolerance must be above 0 and below 1 (metres), not {tolerance:g}")
        _check("tier", tier, (*TIERS, "all"))
        _check("reward", reward, rewards.REWARDS)
        _check("backend", backend, BACKENDS)
        if curriculum and reward == "sparse":
            raise EnvError("curriculum needs the dense reward; with the sparse reward, hindsight takes its place")
        if render_mode == "human" and backend == "pybullet" and not DISPLAY:
            raise EnvError("there is no display for a window: record with --video out.mp4, or watch with --headless")
        if render_mode not in (None, *RENDER_MODES[backend]):
            raise EnvError(
                f"the {backend} backend has no render mode {render_mode}; it has {' and '.join(RENDER_MODES[backend])}"
            )
        self.arm = read_urdf(Path(urdf) if urdf else OWN_URDF)
        self.kinematics = Kinematics(self.arm)
        self.targets: Targets = load_targets(self.kinematics)
        self.render_mode = render_mode
        self.metadata = self.metadata | {"render_modes": list(RENDER_MODES[backend])}
        self._reward, self._tolerance, self._flat, self._backend = reward, tolerance, flat, backend
        self._task, self._curriculum, self._max_steps = full_task(tier, tolerance), curriculum, max_steps
        self._evaluation = evaluation
        self._made: ReachSimulators | None = None
        self.action_space = spaces.Box(-1.0, 1.0, (len(self.arm.joints),), np.float32)
        self.observation_space: spaces.Space = (
            _box(FLAT)
            if flat
            else spaces.Dict({"observation": _box(OBSERVED), "achieved_goal": _box(GOAL), "desired_goal": _box(GOAL)})
        )

    def simulators(self, count: int) -> ReachSimulators:
        """`count` arms for the same task, stepped by one call. Raises EnvError."""
        episodes = EpisodeSampler(self.kinematics, self.targets, self._task, count, self._curriculum, self._evaluation)
        return ReachSimulators(self.kinematics, self._arms(count), episodes, count, self._reward, self._flat, self._max_steps)

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray | float:
        """The rewards [N] of goals [N, 3], or the reward of one pair [3], as `step` gives them. `info` may be {}, one info, or N
        infos."""
        distance = rewards.distance(achieved_goal, desired_goal)
        reward = rewards.reward(self._reward, distance, rewards.tolerance_of(info, self._tolerance))
        return reward if reward.ndim else float(reward)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; the same seed gives the same episode. options={"target": (x, y, z)} sets the target, "level" the
        curriculum's level, from this episode on. Raises EnvError for a target out of reach."""
        super().reset(seed=seed)
        if self._made is None:
            self._made = self.simulators(1)
        if options and "level" in options:
            self._made.set_level(options["level"])
        observation = self._made.reset(np.zeros(1, np.int64), [seed])
        if options and (target := options.get("target")) is not None:
            position = np.array(target, np.float64)
            check_reachable(self.kinematics, self.targets, position)
            away = rewards.distance(position, self.kinematics.flange(self.arm.home[None])[0])
            self._made.set_target(0, position, self._tolerance, int(tier_of(away, self.targets.edges)))
            observation = self._made.observe(np.zeros(1, np.int64))
        distance = float(rewards.distance(self._made.flange[0], self._made.target[0]))
        return self._form(observation), self._info(distance, distance <= float(self._made.tolerance[0]))

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._made is not None, "reset comes first"
        done = self._made.step(np.asarray(action)[None])
        info = self._info(float(done.score[0]), bool(done.success[0]))
        return self._form(done.observation), float(done.reward[0]), bool(done.terminated[0]), bool(done.truncated[0]), info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """[H, W, 3] RGB uint8 of the arm and its target; None where a window shows them."""
        if self._made is None or self.render_mode != "rgb_array":
            return None
        return self._made.arms.picture(self._made.target[0])

    def figures(self) -> list[str]:
        """Lines about the workspace, for `headrace envs --check`."""
        return describe(self.kinematics, self.targets)

    def map(self) -> np.ndarray:
        """[H, W, 3] RGB uint8 of the workspace and its tiers, for `headrace envs --check --picture`."""
        return draw_workspace(self.kinematics, self.targets)

    def close(self) -> None:
        """Frees the simulator. A second call does nothing."""
        if self._made is not None:
            self._made.close()
            self._made = None

    def _arms(self, count: int) -> Arms:
        if self._backend == "kinematic":
            return KinematicArms(self.kinematics, count)
        from actors.envs.robot.backends.bullet import BulletArms

        return BulletArms(self.kinematics, count, window=self.render_mode == "human")

    def _form(self, observation: dict[str, np.ndarray]) -> Any:
        one = {name: rows[0] for name, rows in observation.items()}
        return one["observation"] if self._flat else one

    def _info(self, distance: float, success: bool) -> dict[str, Any]:
        assert self._made is not None
        task = {"tolerance": float(self._made.tolerance[0]), "level": int(self._made.level[0])}
        return {"is_success": success, "score": distance, "group": TIERS[int(self._made.tier[0])], **task}


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _check(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise EnvError(f"no {option} {value!r}; {nearest(value, known)}")
