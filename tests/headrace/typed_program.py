"""A user's program, for the type checkers alone: nothing runs it."""

from __future__ import annotations

from typing import Any, assert_type

import gymnasium
import numpy as np

import headrace
from tests.headrace.own_env import make_corridor


class Mazes(headrace.EnvironmentFamily):
    about = "mazes"


def program() -> None:
    run = headrace.train(
        make_corridor, {"name": "dqn", "gamma": 0.98}, actors=2, run="night", total_steps=1e5, learner={"threads": 1}
    )
    assert_type(run, headrace.Run)
    assert_type(run.wait(timeout_seconds=60.0), dict[str, Any])
    with headrace.train("CartPole-v1") as other:
        assert_type(other.is_up, bool)
    policy = headrace.load(run, best=True)
    assert_type(policy, headrace.Policy)
    assert_type(policy.observation_space, gymnasium.Space[Any])
    action = policy.predict(np.zeros((3, 4)), deterministic=False)
    policy.reset(np.array([True, False, True]))
    print(action, policy.about["env"], headrace.evaluate(policy, "CartPole-v1", episodes=5)["return_mean"])
    try:
        headrace.Run("nothing")
    except headrace.ConfigurationError as error:
        print(str(error))
