"""The robot as an environment family."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import msgspec
from msgspec import Meta, Struct

from actors.envs.base import EnvironmentFamily, Setup, Simulators, variant
from actors.errors import EnvError
from transport.names import FIXED, RARE

if TYPE_CHECKING:
    import gymnasium
    import numpy as np

    from actors.envs.robot.env import ReachEnv

# Ids in Gymnasium's registry -> the form of each.
REGISTERED = {"headrace/FanucReach-v0": "", "headrace/FanucReachFlat-v0": "flat"}


class RobotOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A robot arm that reaches for targets."""

    urdf: Annotated[
        str, Meta(description="URDF file of an arm with six revolute joints; empty means the FANUC LR Mate 200iD", extra=FIXED)
    ] = ""
    arm: Annotated[
        str,
        Meta(
            description="digest of the arm's file, written by `headrace up` so that a resumed run has the same arm; "
            "leave it empty",
            extra=FIXED | RARE,
        ),
    ] = ""
    reward: Annotated[
        Literal["dense", "sparse"],
        Meta(description="dense rewards each step towards the target, sparse only success", extra=FIXED),
    ] = "dense"
    tolerance: Annotated[float, Meta(gt=0, lt=1, description="distance from the target, in metres, that counts as reached")] = (
        0.02
    )
    tier: Annotated[
        Literal["all", "easy", "medium", "hard"],
        Meta(description="which targets, by distance from the home position: all, easy, medium or hard"),
    ] = "all"
    curriculum: Annotated[
        bool,
        Meta(description="start with near targets and a tolerance of 10 cm, and make the task harder as the success rate rises"),
    ] = False
    backend: Annotated[
        Literal["", "pybullet", "kinematic", "auto"],
        Meta(
            description="simulator: pybullet, kinematic (no physics, many times as fast), or auto, which is pybullet where it is "
            "installed; empty means pybullet"
        ),
    ] = "auto"


class Robot(EnvironmentFamily):
    """robot, robot:flat, or one of REGISTERED."""

    about = "FANUC LR Mate 200iD, reaches for targets in its workspace; robot:flat for one vector instead of goals"
    Options = RobotOptions
    ends_episodes = True
    reports_success = True
    pictures_may_be_published = True
    options: RobotOptions

    def make(self, setup: Setup) -> gymnasium.Env:
        from actors.envs.foreign.families import install_hint
        from actors.envs.robot.env import ReachEnv

        options = self.options
        if self.form not in ("", "flat"):
            raise EnvError(f"{self.env_id}: unknown form; write robot (goals) or robot:flat (one vector)")
        backend = self.resolve_options().backend or "pybullet"
        if backend == "pybullet" and find_spec("pybullet") is None:
            raise EnvError(install_hint(self.env_id, "pybullet"))
        env = ReachEnv(
            options.urdf,
            flat=self.form == "flat",
            reward=options.reward,
            tolerance=options.tolerance,
            tier=options.tier,
            backend=backend,
            curriculum=options.curriculum,
            max_steps=setup.max_episode_steps,
            render_mode=setup.render_mode or "rgb_array",
            evaluation=setup.evaluation,
        )
        if options.arm not in ("", env.arm.digest):
            raise EnvError(
                f"{env.arm.path} has changed since the run began, and the policy was trained on the old arm "
                f"(digest {options.arm[:8]}, now {env.arm.digest[:8]}): restore the old file, or start anew with --fresh"
            )
        return env

    @property
    def form(self) -> str:
        """The part of the id after the colon: empty for goals, "flat" for one vector."""
        return REGISTERED.get(self.env_id, variant(self.env_id))

    def pin_options(self) -> RobotOptions:
        from actors.envs.robot.arm.urdf import OWN_URDF, file_digest

        urdf = self.options.urdf
        path = Path(urdf).resolve() if urdf else OWN_URDF
        arm = self.options.arm or file_digest(path)
        return msgspec.structs.replace(self.options, urdf=str(path) if urdf else "", arm=arm)

    def resolve_options(self) -> RobotOptions:
        if self.options.backend != "auto":
            return self.options
        return msgspec.structs.replace(self.options, backend="pybullet" if find_spec("pybullet") else "kinematic")

    def notes(self) -> tuple[str, ...]:
        if self.options.backend != "kinematic" or find_spec("pybullet"):
            return ()
        return (f"{self.env_id} has its kinematic backend, without physics, since PyBullet is not installed",)

    def simulators(self, env: gymnasium.Env, count: int) -> Simulators | None:
        return cast("ReachEnv", env).simulators(count) if env is env.unwrapped else None

    def figures(self, env: gymnasium.Env) -> list[str]:
        return cast("ReachEnv", env.unwrapped).figures()

    def map(self, env: gymnasium.Env) -> np.ndarray | None:
        return cast("ReachEnv", env.unwrapped).map()
