"""Registers the robot with Gymnasium: import this module, then call `gymnasium.make("headrace/FanucReach-v0")`. Or do both at
once: `gymnasium.make("actors.envs.robot.registration:headrace/FanucReach-v0")`."""

from __future__ import annotations

import gymnasium

from actors.envs.robot.family import REGISTERED

for _id, _form in REGISTERED.items():  # without max_episode_steps: the environment truncates by itself
    gymnasium.register(_id, "actors.envs.robot.env:ReachEnv", kwargs={"flat": _form == "flat"})
