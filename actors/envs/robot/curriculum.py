"""The levels of the curriculum, from easy to the configured task: the tiers and the tolerance of each.

A level is an index of `levels(task)`; the last one is the configured task. The supervisor decides when to raise the level.
"""

from __future__ import annotations

from typing import NamedTuple

from actors.envs.robot.arm.targets import TIERS

FULL_SHARE = 0.2  # of the episodes of every level play the full task, so that the policy keeps practising it


class Level(NamedTuple):
    """The tiers that targets are sampled from, and the tolerance in metres."""

    tiers: tuple[str, ...]
    tolerance: float


# First the tiers are added at a tolerance of 10 cm; then the tolerance falls to 5, 2, 1 and 0.5 cm.
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
    return Level(TIERS if tier == "all" else (tier,), tolerance)


def levels(task: Level) -> tuple[Level, ...]:
    """The levels for a task: those of LEVELS with a larger tolerance, restricted to the task's tiers; last the task itself."""
    chosen: list[Level] = []
    for level in LEVELS:
        tiers = tuple(tier for tier in task.tiers if tier in level.tiers) or task.tiers
        step = Level(tiers, level.tolerance)
        if level.tolerance > task.tolerance and step not in chosen:
            chosen.append(step)
    return (*chosen, task)
