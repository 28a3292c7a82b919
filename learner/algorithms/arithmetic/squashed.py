"""Continuous actions in numpy: a Gaussian, squashed by tanh into the bounds. The unbounded action is what is stored."""

from __future__ import annotations

import math

import numpy as np

LEAST_LOG_STD, GREATEST_LOG_STD = -5.0, 2.0
HALF_LOG_2_PI = 0.5 * math.log(2 * math.pi)
NEAR_ONE = 1 - 1e-6  # the arctanh of 1 is infinite


def halves(answer: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A policy's output [K, 2A] -> mean, and log-std clipped to its bounds: [K, A] each."""
    actions = answer.shape[1] // 2
    return answer[:, :actions], answer[:, actions:].clip(LEAST_LOG_STD, GREATEST_LOG_STD)


def draw(random: np.random.Generator, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """Unbounded actions [K, A] float32."""
    action: np.ndarray = mean + np.exp(log_std) * random.standard_normal(mean.shape, np.float32)
    return action


def log_density(action: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """Log-density of tanh(action), [K, A] unbounded each -> [K] float64; log_prob() of gaussian.py in numpy."""
    exact = action.astype(np.float64)
    density = -0.5 * ((exact - mean) * np.exp(-log_std)) ** 2 - log_std - HALF_LOG_2_PI
    slope = 2 * (math.log(2) - exact - np.logaddexp(0, -2 * exact))
    total: np.ndarray = (density - slope).sum(1)
    return total


def draw_uniform(random: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Unbounded actions [K, A] float32 whose tanh is uniform."""
    return np.arctanh(random.uniform(-NEAR_ONE, NEAR_ONE, shape)).astype(np.float32)


def spread_uniformly(noise: np.ndarray) -> np.ndarray:
    """Standard normal numbers [K, A] -> unbounded actions [K, A] float32 in the same order, whose tanh is uniform."""
    share = np.array([math.erf(value / math.sqrt(2)) for value in noise.flat]).reshape(noise.shape)  # of (-1, 1)
    return np.arctanh(NEAR_ONE * share).astype(np.float32)


def uniform_log_density(actions: int) -> float:
    """Log-density of the tanh of an action that draw_uniform() draws."""
    return -math.log(2 * NEAR_ONE) * actions
