"""One arm with Gymnasium's API, in goal form or flat: the same code as many."""

from __future__ import annotations

import difflib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from actors.envs.errors import EnvError
from actors.envs.robot import rewards
from actors.envs.robot.arm.kinematics import Kinematics
from actors.envs.robot.arm.targets import TIERS, Targets, check_reachable, load_targets, tier_of
from actors.envs.robot.arm.urdf import OWN_URDF, read_urdf
from actors.envs.robot.backends.kinematic import KinematicArms
from actors.envs.robot.backends.motion import STEPS_PER_SECOND, Arms
from actors.envs.robot.curriculum import full_task
from actors.envs.robot.draws import Draws
from actors.envs.robot.picture import describe, draw_workspace
from actors.envs.robot.reach import FLAT, GOAL, OBSERVED, ReachSimulators

TOLERANCE = 0.02  # metres
BACKENDS = ("pybullet", "kinematic")
# Without a display PyBullet does not refuse a window, it ends the process.
DISPLAY = not sys.platform.startswith("linux") or any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY"))
RENDER_MODES = {"pybullet": ("rgb_array", "human") if DISPLAY else ("rgb_array",), "kinematic": ("rgb_array",)}


class ReachEnv(gymnasium.Env):
    """Brings the flange of an arm to a target. reach.py says what an episode is, rewards.py what it is worth.

    info: is_success, score (metres to the target), group (the target's tier), tolerance, level. `reset` takes options
    {"target": (x, y, z)}, and refuses one out of reach.
    """

    metadata = {"render_modes": list(RENDER_MODES["pybullet"]), "render_fps": STEPS_PER_SECOND}

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
        """`urdf`: a file, empty for the LR Mate 200iD. `max_steps` truncates an episode; 0: 100 dense, 50 sparse. In evaluation
        targets are those held out, unmoved, and there is no curriculum.

        Raises EnvError, in one line, for what cannot be.
        """
        if not 0 < tolerance < 1:
            raise EnvError(f"tolerance must be above 0 and below 1 (metres), not {tolerance:g}")
        _check("tier", tier, (*TIERS, "all"))
        _check("reward", reward, rewards.REWARDS)
        _check("backend", backend, BACKENDS)
        if curriculum and reward == "sparse":
            raise EnvError("curriculum is for the dense reward: with the sparse one hindsight does what it is for")
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
        """`count` arms for the same task, stepped as one. Raises EnvError."""
        draws = Draws(self.kinematics, self.targets, self._task, count, self._curriculum, self._evaluation)
        return ReachSimulators(self.kinematics, self._arms(count), draws, count, self._reward, self._flat, self._max_steps)

    def compute_reward(self, achieved_goal: np.ndarray, desired_goal: np.ndarray, info: Any) -> np.ndarray | float:
        """The reward [N] of goals [N, 3], or of one pair of them; what `step` gives. `info` may be {}, or one per pair."""
        apart = rewards.distance(achieved_goal, desired_goal)
        found = rewards.reward(self._reward, apart, rewards.tolerance_of(info, self._tolerance))
        return found if found.ndim else float(found)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Starts an episode; with a seed, the same one every time. Raises EnvError for a target out of reach."""
        super().reset(seed=seed)
        if self._made is None:
            self._made = self.simulators(1)
        observation = self._made.reset(np.zeros(1, np.int64), [seed])
        if options and (target := options.get("target")) is not None:
            position = np.array(target, np.float64)
            check_reachable(self.kinematics, self.targets, position)
            away = rewards.distance(position, self.kinematics.flange(self.arm.home[None])[0])
            self._made.aim(0, position, self._tolerance, int(tier_of(away, self.targets.edges)))
            observation = self._made.observe(np.zeros(1, np.int64))
        apart = float(rewards.distance(self._made.flange[0], self._made.target[0]))
        return self._form(observation), self._info(apart, apart <= float(self._made.tolerance[0]))

    def step(self, action: np.ndarray) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Moves the arm."""
        assert self._made is not None, "reset comes first"
        done = self._made.step(np.asarray(action)[None])
        info = self._info(float(done.score[0]), bool(done.success[0]))
        return self._form(done.observation), float(done.reward[0]), bool(done.terminated[0]), bool(done.truncated[0]), info

    def render(self) -> np.ndarray | None:  # type: ignore[override]
        """[H, W, 3] RGB uint8 of the arm and its target; nothing where there is a window."""
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
        """Frees what the simulator holds."""
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

    def _info(self, apart: float, success: bool) -> dict[str, Any]:
        assert self._made is not None
        task = {"tolerance": float(self._made.tolerance[0]), "level": int(self._made.level[0])}
        return {"is_success": success, "score": apart, "group": TIERS[int(self._made.tier[0])], **task}


def _box(size: int) -> spaces.Box:
    return spaces.Box(-np.inf, np.inf, (size,), np.float32)


def _check(option: str, given: str, known: Sequence[str]) -> None:
    if given not in known:
        near = difflib.get_close_matches(given, known, 1, 0.5)
        hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
        raise EnvError(f"no {option} {given!r}; {hint}")
