"""Epsilon-greedy acting, with an epsilon for each environment."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from learner.algorithms.arithmetic.masks import allowed_actions, draw_allowed, mask_array
from learner.algorithms.base import ActionBatch, Explanation, Mode
from learner.inference.base import Inference
from transport.experience import Columns, ExperienceSpec

# For the learner's log line, of algorithms that act by EpsilonGreedyActing.
Q_FIGURES = {"td": "td {:.4g}", "q": "q {:,.2f}", "epsilon_highest": "epsilon ladder {:.2f}-{epsilon_lowest:.4f}"}
STOCHASTIC_EPSILON = 0.05  # of the mode "stochastic"


def places(numbers: np.ndarray, total: int) -> np.ndarray:
    """Where environments of these numbers are among `total`, from 0 to 1; a single one is in the middle."""
    return numbers / (total - 1) if total > 1 else np.full(len(numbers), 0.5)


def epsilon_ladder(offset: int, count: int, total: int, base: float, power: float) -> np.ndarray:
    """epsilon_i = base ** (1 + power * i / (N - 1)), [count] float32, for i = offset … offset + count - 1 of N = total.

    Horgan et al. 2018 (arXiv:1803.00933, section 4.1) with base 0.4, power 7. A single environment gets the middle of the ladder.
    """
    return (base ** (1.0 + power * places(offset + np.arange(count), total))).astype(np.float32)


class EpsilonOptions(Protocol):
    """The options of an algorithm that explores by a ladder of epsilons."""

    @property
    def epsilon_base(self) -> float: ...

    @property
    def epsilon_power(self) -> float: ...


def ladder_ends(options: EpsilonOptions) -> dict[str, float]:
    """The greatest and the least epsilon of several environments, as metrics."""
    base, power = options.epsilon_base, options.epsilon_power
    return {"epsilon_highest": base, "epsilon_lowest": base ** (1.0 + power)}


class EpsilonGreedyActing:
    """Acts by the greatest Q-value, or at random with the environment's epsilon. The inference returns Q-values [K, n]."""

    def __init__(self, spec: ExperienceSpec, options: EpsilonOptions, inference: Inference) -> None:
        self._spec, self._options, self._inference = spec, options, inference
        self.state = inference.state
        self._epsilon: np.ndarray | float = 0.0  # until assign()
        self._random = np.random.default_rng()

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)
        self._epsilon = epsilon_ladder(offset, count, total, self._options.epsilon_base, self._options.epsilon_power)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        q, state = self._inference(observation, state)
        action, _ = self._choose(q, observation, mode)
        return ActionBatch(action, {}, state)

    def explain(self, observation: Columns, state: Columns) -> Explanation:
        q, _ = self._inference(observation, state)
        allowed = allowed_actions(self._spec, observation)
        return Explanation("action value", q.copy() if allowed is None else np.where(allowed, q, np.nan))

    def annotate(self, columns: Columns) -> Columns:
        return columns

    def _choose(self, q: np.ndarray, observation: Columns, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
        """Actions [K], and the Q-values [K, n] with -inf for forbidden actions."""
        allowed = allowed_actions(self._spec, observation)
        if allowed is not None:
            q = mask_array(q, allowed)
        action = q.argmax(1)
        epsilon = {"explore": self._epsilon, "stochastic": STOCHASTIC_EPSILON, "greedy": 0.0, "random": 1.0}[mode]
        explore = np.flatnonzero(self._random.random(len(q), np.float32) < epsilon)
        if len(explore):
            if allowed is None:
                action[explore] = self._random.integers(q.shape[1], size=len(explore))
            else:
                action[explore] = draw_allowed(self._random, allowed[explore])
        return action, q
