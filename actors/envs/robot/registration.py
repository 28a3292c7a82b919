"""Registers the robot with Gymnasium. `import actors.envs.robot.registration`, then `gymnasium.make("headrace/FanucReach-v0")`;
or, in one, `gymnasium.make("actors.envs.robot.registration:headrace/FanucReach-v0")`."""

from __future__ import annotations

import gymnasium

from actors.envs.robot.family import REGISTERED

for _id, _form in REGISTERED.items():  # the time limit is the environment's own
    gymnasium.register(_id, "actors.envs.robot.env:ReachEnv", kwargs={"flat": _form == "flat"})
