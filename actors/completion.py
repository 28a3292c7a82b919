"""How rows become whole as their chunk leaves: what an algorithm wants of each beside what happened is kept until then."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from actors.envs.vector import VectorEnv
from actors.hindsight import GoalReward, Hindsight
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.priorities import BEST_VALUE, TAKEN_VALUE, initial_priority
from learner.config import AlgorithmConfig
from transport.experience import INITIAL_PRIORITY, Columns, ExperienceSpec

Complete = Callable[[Columns], Columns]


def completion(spec: ExperienceSpec, algorithm: AlgorithmConfig, env: VectorEnv, seed: int) -> tuple[ExperienceSpec, Complete]:
    """The spec of rows as the actor keeps them, and what turns the columns [M, rows, …] of M chunks into those of `spec`.

    For DQN: Q-values stay here; what replay is sent instead, how much there may be to learn from each item, is computed n rows
    later. Without it, new items would all be drawn as if the most. With hindsight: goals and rewards that nobody knew yet, drawn
    by `seed`. Raises EnvError for an environment that cannot tell such rewards.
    """
    if spec.hindsight:
        return msgspec.structs.replace(spec, hindsight=0), Hindsight(spec, GoalReward(env.example), seed)
    if not isinstance(algorithm, DqnConfig):
        return spec, lambda columns: columns

    def with_priority(columns: Columns) -> Columns:
        return columns | {INITIAL_PRIORITY: initial_priority(spec, columns, algorithm)}

    return msgspec.structs.replace(spec, remembered=(TAKEN_VALUE, BEST_VALUE)), with_priority
