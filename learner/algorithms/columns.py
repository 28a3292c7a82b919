"""Columns of experience that several algorithms have: the state of a memory, and the other goals of hindsight. No torch here."""

from __future__ import annotations

import msgspec

from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Column, ExperienceSpec

# Names of the state's parts, each [width], of the built-in memories in learner/networks/recurrent.py.
STATES = {"lstm": ("memory/h", "memory/c"), "gru": ("memory/h",)}
# Hindsight experience replay: actors/hindsight.py fills these columns, algorithms learn from them.
HINDSIGHT_GOAL = "hindsight_goal"  # [k, *shape of a goal] as stored: goals achieved later in the same episode
HINDSIGHT_REWARD = "hindsight_reward"  # [k]: the reward of the row's step with each of these goals


def memory_columns(memory: str, width: int) -> tuple[Column, ...]:
    """One value per chunk: the state before the first row of the burn-in. The actor resets the state where an episode begins."""
    return tuple(Column(name, (width,), "<f4", once=True) for name in STATES[memory])


def has_goals(env: ExperienceSpec) -> bool:
    shapes = [field.shape for field in env.fields if field.name in (ACHIEVED_GOAL, DESIRED_GOAL)]
    return len(shapes) == 2 and shapes[0] == shapes[1]


def hindsight_columns(env: ExperienceSpec, goals: int) -> tuple[Column, Column]:
    goal = env.field(DESIRED_GOAL)
    return (
        msgspec.structs.replace(goal, name=HINDSIGHT_GOAL, shape=(goals, *goal.shape), taken="row"),
        Column(HINDSIGHT_REWARD, (goals,), "<f4", check="reward"),
    )


def without_hindsight(spec: ExperienceSpec) -> ExperienceSpec:
    """The spec of rows before the columns of hindsight are filled."""
    extras = tuple(column for column in spec.extras if column.name not in (HINDSIGHT_GOAL, HINDSIGHT_REWARD))
    return msgspec.structs.replace(spec, goals=0, extras=extras)
