"""The bins of a categorical critic: where their values lie, and the distribution that stands for a regression target.

A critic's value is the expectation of a distribution over bins that are evenly spaced in [-REACH, REACH], and it learns by
cross-entropy, as Farebrother et al. 2024 (arXiv:2403.03950) do with HL-Gauss: a Gaussian spreads the target over the bins near
it. Here the Gaussian is taken at the bins' middles, not integrated over them, which moves its mean by less than 2e-4 of a bin.
"""

from __future__ import annotations

import numpy as np

from learner.program.buffers import ones

BINS = 101
REACH = 10.0
DEVIATION = 0.75 * 2 * REACH / (BINS - 1)  # of the Gaussian: three quarters of a bin
MIDDLES = np.linspace(-REACH, REACH, BINS, dtype=np.float32)


def spread(target: np.ndarray) -> np.ndarray:
    """Targets [b] -> distributions [b, BINS]. Targets beyond the reach count as the outermost bin's."""
    found = np.subtract.outer(np.minimum(np.maximum(target, -REACH), REACH), MIDDLES)
    np.multiply(found, found, out=found)
    found *= np.float32(-0.5 / DEVIATION**2)
    np.exp(found, out=found)  # the nearest bin's is at least 0.8
    found /= (found @ ones(BINS))[:, None]
    return found
