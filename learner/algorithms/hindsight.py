"""The columns of hindsight experience replay: other goals for each row. Actors fill them, algorithms learn from them."""

from __future__ import annotations

import msgspec

from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Column, ExperienceSpec

HINDSIGHT_GOAL = "hindsight_goal"  # [k, *shape of a goal] as stored: goals achieved later in the same episode
HINDSIGHT_REWARD = "hindsight_reward"  # [k]: the reward of the row's step with each of these goals


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
    """The spec of rows before actors/hindsight.py has filled these columns."""
    extras = tuple(column for column in spec.extras if column.name not in (HINDSIGHT_GOAL, HINDSIGHT_REWARD))
    return msgspec.structs.replace(spec, goals=0, extras=extras)
