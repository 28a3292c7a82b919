"""Noise of continuous actions that is correlated in time."""

from __future__ import annotations

import numpy as np

from learner.algorithms.exploration import places

LADDER_POWER = 2  # of exponents: the mean over all environments is 1 / (1 + LADDER_POWER) of the highest
COMPARED_EPISODES = 16  # of all environments of an actor, in one test of whether slow noise is harmful
SURE = 3.0  # standard deviations, in the sum of all tests; reached by chance within 3 tests in 1 of 20 actors
BENEFIT = 2.0  # standard deviations in one test: slow noise has reached what fast noise does not
PATIENCE = 16  # tests without benefit


def exponent_ladder(offset: int, count: int, total: int, highest: float) -> np.ndarray:
    """[count] float64 from 0 to `highest`, for environments offset … offset + count - 1 of `total`.

    Actors of `count` environments each are dealt the exponents in turn, so that every actor has low and high ones. A single
    environment gets the middle of the ladder.
    """
    dealt = np.arange(count) * (total // count) + offset // count
    return np.asarray(highest * places(dealt, total) ** LADDER_POWER)


class ColouredNoise:
    """Gaussian noise of variance 1 whose power falls with the frequency f as f ** -exponent: 0 is white, 1 pink, 2 red.

    Each column of each environment is a sequence of its own, made BLOCK steps at a time (Timmer and König 1995, Astronomy and
    Astrophysics 300). Pink noise explores better than white noise in most tasks and hardly worse in any (Eberhard et al. 2023,
    https://openreview.net/forum?id=hQ9V5QN27eS).
    """

    BLOCK = 1_024

    def __init__(self, random: np.random.Generator, exponent: np.ndarray | float) -> None:
        """`exponent`: of all environments, or of each, [K]."""
        self._random, self._exponent = random, np.asarray(exponent, np.float32)
        self._block = np.empty((0, 0, 0), np.float32)
        self._next = 0

    def draw(self, shape: tuple[int, int]) -> np.ndarray:
        """The next step's noise [K, A] float32. With another shape than before all sequences begin anew."""
        if not self._exponent.any():
            return self._random.standard_normal(shape, np.float32)
        if self._next == len(self._block) or self._block.shape[1:] != shape:
            self._block, self._next = self._make(shape), 0
        self._next += 1
        step: np.ndarray = self._block[self._next - 1]
        return step

    def _make(self, shape: tuple[int, int]) -> np.ndarray:
        frequency = np.fft.rfftfreq(self.BLOCK)
        frequency[0] = frequency[1]  # the mean is drawn, too: as the slowest wave
        amplitude = frequency[:, None, None] ** (-self._exponent.reshape(-1, 1) / 2)  # [F, K or 1, 1]
        waves = self._random.standard_normal((2, len(amplitude), *shape))
        waves[1, [0, -1]] = 0.0  # a real sequence has no phase there
        waves[0, [0, -1]] *= np.sqrt(2)
        spectrum = (waves[0] + 1j * waves[1]) * amplitude
        power = 2 * amplitude**2
        total = 2 * power[1:-1].sum(0) + power[[0, -1]].sum(0)  # [K or 1, 1]
        noise = np.fft.irfft(spectrum, self.BLOCK, axis=0) * (self.BLOCK / np.sqrt(total))
        return noise.astype(np.float32)


class Held:
    """Keeps each step's noise for `steps` steps."""

    def __init__(self, noise: ColouredNoise, steps: int) -> None:
        self._noise, self._steps, self._left = noise, steps, 0
        self._kept = np.empty((0, 0), np.float32)

    def draw(self, shape: tuple[int, int]) -> np.ndarray:
        """As that of ColouredNoise."""
        if self._left == 0 or self._kept.shape != shape:
            self._kept, self._left = self._noise.draw(shape), self._steps
        self._left -= 1
        return self._kept


class ColouredWhileUseful:
    """Coloured noise whose exponent differs between environments, until those with higher exponents have lower returns, or have
    had no higher ones for long; from then on white noise.

    Slowly changing noise can reach a reward that white noise does not. Elsewhere it harms learning, because the log-probability
    of an action assumes that its noise is independent of the noise before: often without lower returns where it is slow.
    """

    def __init__(self) -> None:
        self.over = False
        self._evidence = 0.0  # sum of all tests; never above 0, so that early benefit does not hide later harm
        self._without_benefit = 0  # tests in a row
        self.spread(np.random.default_rng(), np.zeros(1))

    def spread(self, random: np.random.Generator, exponent: np.ndarray) -> None:
        """`exponent`: of each environment, [K]. The results of earlier tests are kept."""
        self._random, self._ladder = random, exponent
        self._ended: list[tuple[int, float]] = []  # environment and return
        self._noise = ColouredNoise(random, 0.0 if self.over else exponent)

    def draw(self, shape: tuple[int, int]) -> np.ndarray:
        """As that of ColouredNoise."""
        return self._noise.draw(shape)

    def ended(self, where: np.ndarray, returns: np.ndarray) -> None:
        """Takes the returns [M] of episodes that ended in environments `where` [M]."""
        if self.over or not self._ladder.any():
            return
        self._ended += zip(where.tolist(), returns.tolist(), strict=True)
        if len(self._ended) < COMPARED_EPISODES:
            return
        environments, found = map(np.array, zip(*self._ended, strict=True))
        self._ended.clear()
        if (found == found[0]).all():
            return  # nothing has been reached by any noise
        correlation = _rank_correlation(self._ladder[environments], found)
        self._evidence = min(self._evidence + correlation, 0.0)
        self._without_benefit = 0 if correlation > BENEFIT else self._without_benefit + 1
        if self._evidence < -SURE or self._without_benefit == PATIENCE:
            self.over = True
            self._noise = ColouredNoise(self._random, 0.0)


def _rank_correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Kendall's S of x and y, [n] each, divided by its standard deviation for independent x and y. Positive if y rises with x.

    Kendall 1938 (doi:10.1093/biomet/30.1-2.81). Ties would make the standard deviation smaller; that is neglected.
    """
    n = len(x)
    concordant = np.sign(np.subtract.outer(x, x)) * np.sign(np.subtract.outer(y, y))
    return float(concordant.sum() / 2 / np.sqrt(n * (n - 1) * (2 * n + 5) / 18))
