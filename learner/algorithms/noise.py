"""Noise of continuous actions that is correlated in time."""

from __future__ import annotations

import numpy as np


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
        if not self._exponent:
            return self._random.standard_normal(shape, np.float32)
        if self._next == len(self._block) or self._block.shape[1:] != shape:
            self._block, self._next = self._make(shape), 0
        self._next += 1
        step: np.ndarray = self._block[self._next - 1]
        return step

    def _make(self, shape: tuple[int, int]) -> np.ndarray:
        frequency = np.fft.rfftfreq(self.BLOCK)
        frequency[0] = frequency[1]  # the mean is drawn, too: as the slowest wave
        amplitude = frequency[:, None, None] ** (-self._exponent / 2)  # [F, 1, 1]
        waves = self._random.standard_normal((2, len(amplitude), *shape))
        waves[1, [0, -1]] = 0.0  # a real sequence has no phase there
        waves[0, [0, -1]] *= np.sqrt(2)
        spectrum = (waves[0] + 1j * waves[1]) * amplitude
        power = 2 * amplitude**2
        total = 2 * power[1:-1].sum(0) + power[[0, -1]].sum(0)  # [1, 1]
        noise = np.fft.irfft(spectrum, self.BLOCK, axis=0) * (self.BLOCK / np.sqrt(total))
        return noise.astype(np.float32)
