"""Running mean and variance of features in arrays: what Normaliser of learner/networks/inputs.py observes in torch."""

from __future__ import annotations

import numpy as np


def observe(
    count: np.ndarray, mean: np.ndarray, variance: np.ndarray, values: np.ndarray, weight: np.ndarray | None = None
) -> None:
    """Updates the statistics, 0-d and [F] twice, in place by values [N, F], unless they would become infinite or NaN.

    `weight` [N], positive: how much each row counts beside the others of the call. None: all count the same.
    Chan et al. 1983 (doi:10.1080/00031305.1983.10483115), with means instead of sums, so that nothing overflows. Sums are in
    float64: numpy adds rows one after the other, which loses digits in float32.
    """
    if not len(values):
        return
    shares = np.full(len(values), 1 / len(values)) if weight is None else weight / weight.sum(dtype=np.float64)
    wide = values.astype(np.float64)
    new_mean = shares @ wide
    wide -= new_mean
    wide *= wide
    total = count + np.float32(len(values))
    share = len(values) / float(total)
    step = new_mean - mean
    merged = (1 - share) * variance + share * (shares @ wide) + share * (1 - share) * step * step
    new_mean, merged = (mean + share * step).astype(np.float32), merged.astype(np.float32)
    if np.isfinite(new_mean).all() and np.isfinite(merged).all():
        count[...], mean[...], variance[...] = total, new_mean, merged
