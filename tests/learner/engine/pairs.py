"""One update by torch and by the engine: from the same weights, on the same batches, with the same random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from learner.config import LearnerConfig
from learner.engine.runtime import EngineRuntime
from tests.learner.engine.arrays import in_arrays
from tests.learner.examples import algorithm_of, make_update
from transport.experience import ExperienceSpec

Weights = dict[str, np.ndarray]


class Random:
    """Draws the orders of items apart from all else: torch draws those of all passes before the first of them."""

    def __init__(self) -> None:
        self._orders, self._others = np.random.default_rng(7), np.random.default_rng(7)
        self.permutation = self._orders.permutation
        self.standard_normal, self.integers = self._others.standard_normal, self._others.integers

    def seed(self, seed: int) -> None:
        for each in (self._orders, self._others):
            each.bit_generator.state = np.random.default_rng(seed).bit_generator.state


class Pair:
    """`torch` is the update by torch, `arrays` that by the engine."""

    def __init__(
        self, spec: ExperienceSpec, config: Any, learner: LearnerConfig, patch: pytest.MonkeyPatch, max_policy_lag: int = 1
    ) -> None:
        self.torch = make_update(spec, config, learner, max_policy_lag=max_policy_lag)
        for optimiser in self.torch.optimiser.process.optimisers.values():
            optimiser._measured = True  # a measurement of memory would draw, too
        self.runtime = EngineRuntime(learner, max_policy_lag=max_policy_lag)
        update: Any = algorithm_of(config).array_update(spec, self.runtime)
        assert update is not None, "the engine does not know these networks"
        self.arrays = update
        self.load_from_torch()
        self._drawn = ours, theirs = Random(), Random()
        patch.setattr(self.runtime, "random", ours)
        patch.setattr(torch, "randperm", lambda items: torch.from_numpy(theirs.permutation(items)))
        patch.setattr(torch, "randn_like", lambda like: torch.from_numpy(theirs.standard_normal(like.shape, np.float32)))
        patch.setattr(torch, "randint", self._draw_integers(torch.randint, theirs))

    @staticmethod
    def _draw_integers(plain: Any, random: Random) -> Any:
        """As torch.randint: updates name the device, tests that make a batch do not."""

        def draw(*bounds: Any, **options: Any) -> Tensor:
            return torch.from_numpy(random.integers(*bounds)) if "device" in options else plain(*bounds, **options)

        return draw

    def seed(self, seed: int) -> None:
        """Both draw the same numbers from here on, also a further update by torch."""
        for each in self._drawn:
            each.seed(seed)

    def load_from_torch(self) -> None:
        for name, module in self.torch.modules.items():
            self.arrays.modules[name].load(in_arrays(module.state_dict()))

    def hand_over(self, to_arrays: bool) -> None:
        """All that is in a checkpoint goes from torch to the engine, or back."""
        runtimes = self.torch.optimiser.process, self.runtime
        if to_arrays:
            self.load_from_torch()
            runtimes[1].load_state(in_arrays(runtimes[0].state()))
            self.arrays.counters.update(self.torch.counters)
            return
        for name, module in self.arrays.modules.items():
            self.torch.modules[name].load_state_dict({key: torch.tensor(value) for key, value in module.state_dict().items()})
        runtimes[0].load_state({key: np.array(value) for key, value in runtimes[1].state().items()})
        self.torch.counters.update(self.arrays.counters)

    def update(self, batch: Any, rtol: float = 1e-3, atol: float = 1e-4) -> None:
        """Also compares metrics, priorities and the counts of skipped steps."""
        expected, found = self.torch.update(batch), self.arrays.update(in_arrays(batch))
        assert found.metrics.keys() == expected.metrics.keys()
        for name, value in expected.metrics.items():
            np.testing.assert_allclose(found.metrics[name], value.numpy(), rtol, atol, err_msg=name)
        assert (found.priorities is None) == (expected.priorities is None)
        if expected.priorities is not None:
            np.testing.assert_allclose(found.priorities, expected.priorities.numpy(), rtol, atol)
        theirs = {name: float(value) for name, value in self.torch.optimiser.process.figures().items()}
        assert self.runtime.figures() == pytest.approx(theirs)
        assert self.arrays.counters == pytest.approx(self.torch.counters)

    def weights(self) -> tuple[Weights, Weights]:
        """Those of all modules: by torch, by arrays."""
        theirs, ours = weights_of(self.torch), weights_of(self.arrays)
        assert list(theirs) == list(ours)
        assert all(value.shape == ours[name].shape and value.dtype == ours[name].dtype for name, value in theirs.items())
        return theirs, ours

    def apart(self, before: Weights) -> float:
        """How far the weights are from torch's, by the way that they have moved since `before`."""
        return distance(*self.weights(), before)


def distance(one: Weights, other: Weights, before: Weights) -> float:
    """How far both are apart, by the way that the first have moved since `before`."""
    moved = np.concatenate([(value - before[name]).ravel() for name, value in one.items()])
    apart = np.concatenate([(value - other[name]).ravel() for name, value in one.items()])
    assert np.isfinite(apart).all()
    return float(np.linalg.norm(apart) / np.linalg.norm(moved)) if moved.any() else float(apart.any())


def weights_of(update: Any) -> Weights:
    """Copies of the tensors of all modules."""
    every = ((f"{name}/{key}", value) for name, module in update.modules.items() for key, value in module.state_dict().items())
    return {name: np.array(value.numpy() if isinstance(value, Tensor) else value) for name, value in every}
