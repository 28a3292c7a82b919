"""A version of the policy: weights that act, and what they are checked by."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from learner.algorithms.base import ActionBatch, Algorithm, Mode
from learner.inference.base import Inference
from learner.weights.errors import CheckpointError
from transport.experience import Columns, ExperienceSpec
from transport.text import plain

FIGURES = ("return_mean", "episodes")  # of the evaluation, in a file's metadata
UNKNOWN_VERSION = -1


def reason_of(error: Exception) -> str:
    """An error in one line that clients may see: of others than Headrace's own the kind alone. A path may be in their text."""
    return plain(" ".join(str(error).split())) if isinstance(error, ValueError) else type(error).__name__


class CheckedInference:
    """Remembers which rows of the last pass had outputs, or a state, that are not finite: a choice of the greatest would hide
    that."""

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.state = inference.state
        self.faulty: np.ndarray = np.zeros(0, bool)  # [K]

    @property
    def weights(self) -> Mapping[str, np.ndarray]:
        return self._inference.weights

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        self._inference.load(weights)

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        outputs, after = self._inference(observation, state)
        finite = np.all(np.isfinite(outputs), axis=1)
        for values in after.values():
            finite &= np.isfinite(values).reshape(len(values), -1).all(1)
        self.faulty = ~finite
        return outputs, after


class ActionResult(NamedTuple):
    """The actions of K rows; None where the policy raised an error. `fault`: that error, or why rows have no action."""

    batch: ActionBatch | None
    faulty: np.ndarray  # [K] bool
    fault: str


class Version:
    """One set of weights. Its network is its own, so that several versions can answer at the same time."""

    def __init__(
        self, spec: ExperienceSpec, algorithm: Algorithm, inference: Inference, metadata: Mapping[str, str], source: str
    ) -> None:
        """`source`: where it is from, without a path. Raises CheckpointError."""
        try:
            self.number = int(metadata.get("policy_version", UNKNOWN_VERSION))
            self.figures = {name: float(metadata[name]) for name in FIGURES if name in metadata}
        except ValueError as error:
            raise CheckpointError(f"{source} has a number that is none ({error})") from error
        self._inference = CheckedInference(inference)
        self._spec, self.acting = spec, algorithm.acting(spec, self._inference)
        self.acting.assign(secrets.randbits(31), 0, 1, 1)
        self.name = f"v{self.number} of {source}"

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionResult:
        """observation[name]: [K, stack, *shape] as stored, state[name]: [K, *shape]."""
        count = len(next(iter(observation.values())))
        try:
            with np.errstate(all="ignore"):
                batch = self.acting.act(observation, state, mode)
        except Exception as error:  # of a user's own algorithm or network
            return ActionResult(None, np.ones(count, bool), reason_of(error))
        faulty = self._inference.faulty
        if batch.action.dtype.kind == "f":
            faulty = faulty | ~np.isfinite(batch.action).all(1)
        return ActionResult(batch, faulty, "its outputs are not finite" if faulty.any() else "")

    def fault(self, observations: Columns) -> str:
        """Why it cannot act on these observations [K, stack, *shape]; empty where it can."""
        count = len(next(iter(observations.values())))
        state = {name: np.zeros((count, *shape), np.float32) for name, shape in self.acting.state.items()}
        return self.act(observations, state, "greedy").fault
