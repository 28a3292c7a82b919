"""Notices where a policy without memory does not learn, although a memory might: equal observations come again and again."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from learner.algorithms.base import ActingPolicy
from transport.experience import Columns, ExperienceSpec

EVALUATIONS, SECONDS = 8, 120.0  # from the first evaluation on, before anything is said
COMPARED = 4  # evaluations: the mean return of the last ones is compared with that of the first ones
REPEATED = 0.5  # of the steps of an evaluation


class MemoryHint:
    """Call `step` with each observation that is acted on, and `evaluated` after each evaluation."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy) -> None:
        # A single Discrete observation is the whole state, as in Taxi.
        self._watches = not policy.state and not spec.is_single_discrete
        self._seen: dict[int, set[int]] = {}  # in the present episode of each environment
        self._steps = self._repeated = 0
        self._returns: list[float] = []
        self._error = 0.0  # standard error of the first evaluation
        self._began = math.inf

    def step(self, observation: Columns, started: np.ndarray) -> None:
        """observation[name]: [K, …]; started: [K] bool, where an episode begins with it."""
        if not self._watches:
            return
        for k, first in enumerate(started.tolist()):
            seen = self._seen.setdefault(k, set())
            if first:
                seen.clear()
            key = hash(tuple(rows[k].tobytes() for rows in observation.values()))
            self._steps += 1
            self._repeated += key in seen
            seen.add(key)

    def evaluated(self, figures: Mapping[str, Any]) -> str:
        """A line for the user, once; otherwise an empty text."""
        repeated = self._repeated / max(self._steps, 1)
        self._steps = self._repeated = 0
        self._returns.append(figures["return_mean"])
        if len(self._returns) == 1:
            self._began, self._error = time.monotonic(), figures["return_std"] / math.sqrt(figures["episodes"])
        if not self._watches or len(self._returns) < EVALUATIONS or time.monotonic() - self._began < SECONDS:
            return ""
        before, now = np.mean(self._returns[:COMPARED]), np.mean(self._returns[-COMPARED:])
        if now > before + 2 * self._error or repeated < REPEATED or (figures["success_rate"] or 0.0) > REPEATED:
            return ""
        self._watches = False
        return (
            f"returns have not risen in {len(self._returns)} evaluations, and {repeated:.0%} of observations repeat within their "
            "episode: if an observation does not tell all that matters, use a memory: --algo r2d2, or --algo ppo "
            "--algorithm.memory lstm"
        )
