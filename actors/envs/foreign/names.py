"""The names of actions in environments that do not tell them."""

from __future__ import annotations

import enum

import gymnasium

# Gymnasium's own environments by their class: of the discrete actions, as their documentation has them.
DISCRETE: dict[str, tuple[str, ...]] = {
    "AcrobotEnv": ("torque left", "none", "torque right"),
    "BlackjackEnv": ("stick", "hit"),
    "CarRacing": ("nothing", "right", "left", "gas (forward)", "brake (backward)"),
    "CartPoleEnv": ("left", "right"),
    "CliffWalkingEnv": ("up", "right", "down", "left"),
    "FrozenLakeEnv": ("left", "down", "right", "up"),
    "LunarLander": ("nothing", "left engine", "main engine (up)", "right engine"),
    "MountainCarEnv": ("left", "none", "right"),
    "TaxiEnv": ("south", "north", "east", "west", "pickup", "dropoff"),
}
# And of the entries of continuous ones.
CONTINUOUS: dict[str, tuple[str, ...]] = {
    "BipedalWalker": ("hip 1", "knee 1", "hip 2", "knee 2"),
    "CarRacing": ("steering", "gas", "brake"),
    "Continuous_MountainCarEnv": ("force",),
    "LunarLander": ("main engine (up)", "side engines"),
    "PendulumEnv": ("torque",),
}


def known_names(env: gymnasium.Env) -> list[str]:
    """The names; empty where nothing is known. Some environments, such as MiniGrid's, have an enumeration of their actions."""
    bare = env.unwrapped
    actions = getattr(bare, "actions", None)
    if isinstance(actions, type) and issubclass(actions, enum.IntEnum):
        return [action.name for action in sorted(actions)]
    table = DISCRETE if isinstance(bare.action_space, gymnasium.spaces.Discrete) else CONTINUOUS
    return list(table.get(type(bare).__name__, ()))
