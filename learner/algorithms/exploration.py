"""Exploration: an epsilon for each environment, the actions that it gives, and noise that is correlated in time."""

from __future__ import annotations

import numpy as np

from learner.algorithms.masks import draw_allowed, masked

STOCHASTIC_EPSILON = 0.05  # of the mode "stochastic"


def epsilon_ladder(offset: int, count: int, total: int, base: float, power: float) -> np.ndarray:
    """epsilon_i = base ** (1 + power * i / (N - 1)), [count] float32, for i = offset … offset + count - 1 of N = total.

    Horgan et al. 2018 (arXiv:1803.00933, section 4.1) with base 0.4, power 7. A single environment gets the middle of the ladder.
    """
    place = (offset + np.arange(count)) / (total - 1) if total > 1 else np.full(count, 0.5)
    return (base ** (1.0 + power * place)).astype(np.float32)


class ColouredNoise:
    """Gaussian noise of variance 1 whose power falls with the frequency f as f ** -exponent: 0 is white, 1 pink, 2 red.

    Each column of each environment is a sequence of its own, made BLOCK steps at a time (Timmer and König 1995, Astronomy and
    Astrophysics 300). Pink noise explores better than white noise in most tasks and hardly worse in any (Eberhard et al. 2023,
    https://openreview.net/forum?id=hQ9V5QN27eS).
    """

    BLOCK = 1_024

    def __init__(self, random: np.random.Generator, exponent: float) -> None:
        self._random, self._exponent = random, exponent
        self._block = np.empty((0, 0, 0), np.float32)
        self._next = 0

    def draw(self, shape: tuple[int, int]) -> np.ndarray:
        """The next step's noise [K, A] float32. With another shape than before all sequences begin anew."""
        if self._next == len(self._block) or self._block.shape[1:] != shape:
            self._block, self._next = self._make(shape), 0
        self._next += 1
        step: np.ndarray = self._block[self._next - 1]
        return step

    def _make(self, shape: tuple[int, int]) -> np.ndarray:
        amplitude = np.fft.rfftfreq(self.BLOCK)
        amplitude[0] = amplitude[1]  # the mean is drawn, too: as the slowest wave
        amplitude **= -self._exponent / 2
        waves = self._random.standard_normal((2, len(amplitude), *shape))
        waves[1, [0, -1]] = 0.0  # a real sequence has no phase there
        waves[0, [0, -1]] *= np.sqrt(2)
        spectrum = (waves[0] + 1j * waves[1]) * amplitude[:, None, None]
        power = 2 * amplitude**2
        noise = np.fft.irfft(spectrum, self.BLOCK, axis=0) * (self.BLOCK / np.sqrt(2 * power[1:-1].sum() + power[[0, -1]].sum()))
        return noise.astype(np.float32)


def epsilon_greedy(
    random: np.random.Generator, q: np.ndarray, epsilon: np.ndarray | float, allowed: np.ndarray | None
) -> np.ndarray:
    """Actions [K]: by probability epsilon, a number or [K], uniformly random, else of the greatest Q-value of q [K, n]; among
    `allowed` [K, n] where not all actions are."""
    action: np.ndarray = (q if allowed is None else masked(q, allowed)).argmax(1)
    explore = np.flatnonzero(random.random(len(q), np.float32) < epsilon)
    if len(explore):
        if allowed is None:
            action[explore] = random.integers(q.shape[1], size=len(explore))
        else:
            action[explore] = draw_allowed(random, allowed[explore])
    return action
