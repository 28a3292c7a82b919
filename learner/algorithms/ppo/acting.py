"""Acting by a stochastic policy, with the log-probability of each action."""

from __future__ import annotations

import math

import numpy as np

from learner.algorithms.arithmetic.masks import allowed_actions, draw_allowed, mask_array
from learner.algorithms.arithmetic.squashed import draw, draw_uniform, halves, log_density, uniform_log_density
from learner.algorithms.base import ActionBatch, Explanation, Mode
from learner.algorithms.noise import ColouredNoise
from learner.algorithms.ppo.config import LOG_PROB
from learner.inference.base import Inference
from transport.experience import Categorical, Columns, ExperienceSpec, MultiCategorical


class StochasticActing:
    """The inference returns logits [K, n], those of several choices side by side, or mean and log-std [K, 2A].

    Exploration draws the noise of continuous actions from sequences, `stochastic` does not. The log-probability is that of the
    action alone, as if the noise were independent (Hollenstein et al. 2024, arXiv:2312.11091).
    """

    def __init__(self, spec: ExperienceSpec, noise_exponent: float, inference: Inference) -> None:
        self._spec, self._inference, self._exponent = spec, inference, noise_exponent
        self.state = inference.state
        self.assign(0, 0, 1, 1)

    def assign(self, seed: int, offset: int, count: int, total: int) -> None:
        self._random = np.random.default_rng(seed)
        self._noise = ColouredNoise(self._random, self._exponent)

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        output, state = self._inference(observation, state)
        if isinstance(self._spec.action, Categorical):
            action, log_prob = self._choose(output, mode, allowed_actions(self._spec, observation))
        elif isinstance(self._spec.action, MultiCategorical):
            action, log_prob = self._choose_each(output, mode, self._spec.action.sizes)
        else:
            action, log_prob = self._draw(output, mode)
        return ActionBatch(action, {LOG_PROB: log_prob.astype(np.float32)}, state)

    def explain(self, observation: Columns, state: Columns) -> Explanation | None:
        if not isinstance(self._spec.action, Categorical):
            return None
        logits, _ = self._inference(observation, state)
        allowed = allowed_actions(self._spec, observation)
        if allowed is not None:
            logits = mask_array(logits, allowed)
        weights = np.exp(logits - logits.max(1, keepdims=True))
        shares = weights / weights.sum(1, keepdims=True)
        return Explanation("probability", shares if allowed is None else np.where(allowed, shares, np.nan), (0.0, 1.0))

    def annotate(self, columns: Columns) -> Columns:
        return columns

    def _choose(self, logits: np.ndarray, mode: Mode, allowed: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
        """One of n actions [K], allowed ones [K, n] where not all are; and its log-probability [K]."""
        count, n = logits.shape
        if mode == "random":
            if allowed is not None:
                return draw_allowed(self._random, allowed), -np.log(allowed.sum(1))
            return self._random.integers(n, size=(count,)), np.full(count, -math.log(n))
        if allowed is not None:
            logits = mask_array(logits, allowed)
        shifted = logits - logits.max(1, keepdims=True)
        cumulative = np.exp(shifted).cumsum(1)  # [K, n]; the last is the sum
        if mode == "greedy":
            action = logits.argmax(1)
        else:  # inverse of the cumulative distribution at a uniform share; the minimum guards against rounding
            share = self._random.random((count, 1)) * cumulative[:, -1:]
            action = np.minimum((cumulative <= share).sum(1, np.int64), n - 1)
            if allowed is not None:  # rounding again, or logits that are not finite
                action = np.where(allowed[np.arange(count), action], action, logits.argmax(1))
        return action, shifted[np.arange(count), action] - np.log(cumulative[:, -1])

    def _choose_each(self, output: np.ndarray, mode: Mode, sizes: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
        """Several choices [K, D] of `sizes` [D] values each, all at once; and their joint log-probability [K]."""
        count, most = len(output), max(sizes)
        exists = np.arange(most) < np.array(sizes)[:, None]  # [D, most]
        logits = np.zeros((count, *exists.shape), output.dtype)
        logits[:, exists] = output
        action, log_prob = self._choose(logits.reshape(-1, most), mode, np.tile(exists, (count, 1)))
        return action.reshape(count, -1), log_prob.reshape(count, -1).sum(1)

    def _draw(self, output: np.ndarray, mode: Mode) -> tuple[np.ndarray, np.ndarray]:
        """Unbounded actions [K, A], and the log-density [K] of their tanh."""
        mean, log_std = halves(output)
        if mode == "random":
            return draw_uniform(self._random, mean.shape), np.full(len(mean), uniform_log_density(mean.shape[1]))
        if mode == "greedy":
            action = mean.copy()
        elif mode == "stochastic":
            action = draw(self._random, mean, log_std)
        else:
            action = mean + np.exp(log_std) * self._noise.draw(mean.shape)  # type: ignore[arg-type]
        return action, log_density(action, mean, log_std)
