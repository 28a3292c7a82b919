"""From easy to the task itself: which tiers and what tolerance at which level.

A level is an index of `levels(task)`; the last one is the configured task. Who decides when to climb is not here.
"""

from __future__ import annotations

from typing import NamedTuple

from actors.envs.robot.arm.targets import TIERS

FULL_SHARE = 0.2  # of episodes that are at the full task at every level, so that it is not forgotten


class Level(NamedTuple):
    """What targets are drawn from, and how near the flange must come, in metres."""

    tiers: tuple[str, ...]
    tolerance: float


# Tolerances fall as 10, 5, 2, 1, 0.5 cm; the tiers join before it gets finer than 5 cm.
LEVELS = (
    Level(("easy",), 0.10),
    Level(("easy", "medium"), 0.10),
    Level(TIERS, 0.10),
    Level(TIERS, 0.05),
    Level(TIERS, 0.02),
    Level(TIERS, 0.01),
    Level(TIERS, 0.005),
)


def full_task(tier: str, tolerance: float) -> Level:
    """The configured task: one tier, or all."""
    return Level(TIERS if tier == "all" else (tier,), tolerance)


def levels(task: Level) -> tuple[Level, ...]:
    """The way to a task: no level finer than it, nor with a tier that it does not have; the last is the task."""
    way: list[Level] = []
    for level in LEVELS:
        tiers = tuple(tier for tier in task.tiers if tier in level.tiers) or task.tiers
        step = Level(tiers, level.tolerance)
        if level.tolerance > task.tolerance and step not in way:
            way.append(step)
    return (*way, task)
