"""PPO's loss in arrays, with its gradient by the outputs of policy and value function; in torch: `PpoUpdate.objective`."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from learner.algorithms.arithmetic.masks import FORBIDDEN
from learner.algorithms.arithmetic.squashed import GREATEST_LOG_STD, HALF_LOG_2_PI, LEAST_LOG_STD
from learner.algorithms.ppo.config import GREATEST_LOG_RATIO, PpoConfig

ONE = np.float32(1)


class Items(NamedTuple):
    """N items of a rollout or of a minibatch."""

    inputs: np.ndarray  # [N, F] of the networks
    allowed: np.ndarray  # [N, n] bool; [N, 0] where every action is allowed
    action: np.ndarray  # [N] int64, [N, D] int64, or [N, A] float32 unbounded
    log_prob: np.ndarray  # [N] under the policy in the ratio's denominator; of continuous actions before the tanh
    value: np.ndarray  # [N] before the first step of this rollout
    advantage: np.ndarray  # [N]
    return_: np.ndarray  # [N] targets of the value function


class Objective(NamedTuple):
    """The loss of a minibatch."""

    metrics: dict[str, float]
    by_output: np.ndarray  # [N, outputs]
    by_value: np.ndarray  # [N, 1]


def objective(
    distribution: Choices | Gaussian,
    value: np.ndarray,
    items: Items,
    config: PpoConfig,
    ent_coef: float,
    scale: np.ndarray | None,
) -> Objective:
    """Clipped surrogate (eq. 7 of arXiv:1707.06347), squared error of values, entropy bonus. value: [N]. `scale`: of values.

    The metric kl estimates KL(old | new) by the mean of (r - 1) - log r, which is never negative; clip_fraction is the fraction
    of items whose ratio is outside the clip range.
    """
    share, advantage, clip = np.float32(1 / len(value)), items.advantage, config.clip_range
    raw = distribution.log_prob - items.log_prob
    log_ratio = np.clip(raw, -GREATEST_LOG_RATIO, GREATEST_LOG_RATIO)
    ratio = np.exp(log_ratio)
    gain, clipped = ratio * advantage, np.clip(ratio, 1 - clip, 1 + clip) * advantage
    by_log_prob = np.where((gain > clipped) | (raw != log_ratio), 0, gain * -share)  # NaN stays NaN, so that the step is skipped
    policy_loss = -_mean(np.minimum(gain, clipped))
    value_loss, by_value = _value_loss(value, items, config.clip_range_vf, scale)
    by_value *= np.float32(config.vf_coef) * share
    entropy = _mean(distribution.entropy)
    moved = ratio - ONE
    metrics = {
        "loss": policy_loss + config.vf_coef * value_loss - ent_coef * entropy,
        "policy_loss": policy_loss,
        "value_loss": value_loss,
        "entropy": entropy,
        "kl": _mean(moved - log_ratio),
        "clip_fraction": np.count_nonzero(np.abs(moved) > clip) / len(value),
    }
    return Objective(metrics, distribution.gradient(by_log_prob, np.float32(-ent_coef) * share), by_value[:, None])


def _value_loss(value: np.ndarray, items: Items, clip: float, scale: np.ndarray | None) -> tuple[float, np.ndarray]:
    """The mean squared error of the values in units of their scale, and N times its derivatives [N] by the values."""
    before, return_ = items.value, items.return_
    if scale is not None:
        value, before, return_ = value / scale, before / scale, return_ / scale
    error = value - return_
    slope = np.float32(2) * error
    square = np.square(error)
    if clip:
        moved = value - before
        near = np.clip(moved, -clip, clip)
        other = np.square(before + near - return_)
        slope[(other > square) & (near != moved)] = 0
        square = np.maximum(square, other)
    return _mean(square), slope if scale is None else slope / scale


class Choices:
    """One of n actions, or one in each of D choices, which are independent, given the observation."""

    def __init__(self, output: np.ndarray, action: np.ndarray, allowed: np.ndarray, sizes: tuple[int, ...]) -> None:
        """output: logits [N, n], those of several choices side by side; action: [N] or [N, D]; `sizes` [D] of the choices."""
        self._shape, most = output.shape, max(sizes)
        self._allowed = allowed if allowed.shape[1] else None
        if self._allowed is not None:
            output = np.where(self._allowed, output, np.float32(FORBIDDEN))
        self._exists = None if min(sizes) == most else np.arange(most) < np.array(sizes)[:, None]  # [D, most]
        if self._exists is not None:
            padded = np.full((len(output), *self._exists.shape), FORBIDDEN, np.float32)
            padded[:, self._exists] = output
            output = padded
        logits = output.reshape(-1, most)  # [N * D, most]
        self._log = logits - logits.max(1, keepdims=True)
        self._probability = np.exp(self._log)
        total = self._probability.sum(1, keepdims=True)
        self._probability /= total
        self._log -= np.log(total)
        self._taken = np.arange(len(logits)), action.reshape(-1)
        self._entropy = -np.einsum("ij,ij->i", self._probability, self._log)  # of each choice
        self.log_prob, self.entropy = self._sums(self._log[self._taken]), self._sums(self._entropy)  # [N]

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """[N * D] -> [N]."""
        each = len(values) // self._shape[0]
        return values if each == 1 else values.reshape(-1, each).sum(1)

    def gradient(self, by_log_prob: np.ndarray, by_entropy: np.float32) -> np.ndarray:
        """The gradient by the output [N, n], given those by log_prob [N] and by the entropy of each item."""
        each = len(self._log) // len(by_log_prob)
        taken = by_log_prob if each == 1 else np.repeat(by_log_prob, each)  # [N * D]
        if by_entropy:
            slope = self._log + self._entropy[:, None]
            slope *= by_entropy
            slope += taken[:, None]
            slope *= self._probability
        else:
            slope = self._probability * taken[:, None]
        np.negative(slope, out=slope)
        slope[self._taken] += taken
        if self._exists is not None:
            slope = slope.reshape(len(by_log_prob), *self._exists.shape)[:, self._exists]
        slope = slope.reshape(self._shape)
        return slope if self._allowed is None else np.where(self._allowed, slope, 0)


class Gaussian:
    """Unbounded actions [N, A]. log_prob and entropy are those before the tanh, whose slope does not depend on the output."""

    def __init__(self, output: np.ndarray, action: np.ndarray) -> None:
        """output: mean and log-std, [N, 2A]."""
        self._actions = action.shape[1]
        self._raw = output[:, self._actions :]
        self._log_std = np.clip(self._raw, LEAST_LOG_STD, GREATEST_LOG_STD)
        self._inverse = np.exp(-self._log_std)
        self._normal = (action - output[:, : self._actions]) * self._inverse
        total = self._log_std.sum(1)
        self.log_prob = np.float32(-0.5) * np.einsum("ij,ij->i", self._normal, self._normal) - total
        self.log_prob -= np.float32(HALF_LOG_2_PI * self._actions)
        self.entropy = total + np.float32((0.5 + HALF_LOG_2_PI) * self._actions)

    def gradient(self, by_log_prob: np.ndarray, by_entropy: np.float32) -> np.ndarray:
        """The gradient by the output [N, 2A], given those by log_prob [N] and by the entropy of each item."""
        slope = np.empty((len(by_log_prob), 2 * self._actions), np.float32)
        mean, log_std = slope[:, : self._actions], slope[:, self._actions :]
        along = by_log_prob[:, None]
        np.multiply(self._normal, self._inverse, out=mean)
        mean *= along
        np.square(self._normal, out=log_std)
        log_std -= ONE
        log_std *= along
        log_std += by_entropy
        log_std[self._raw != self._log_std] = 0
        return slope


def log_slopes(action: np.ndarray) -> np.ndarray:
    """Sums of log(1 - tanh(action)^2), [N, A] -> [N], without overflow."""
    slope: np.ndarray = np.float32(2 * math.log(2)) - 2 * action - 2 * np.logaddexp(np.float32(0), -2 * action)
    return slope.sum(1)


def _mean(values: np.ndarray) -> float:
    return float(np.add.reduce(values)) / len(values)
