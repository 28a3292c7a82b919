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


class Pair:
    """`torch` is the update by torch, `arrays` that by the engine."""

    def __init__(
        self, spec: ExperienceSpec, config: Any, learner: LearnerConfig, patch: pytest.MonkeyPatch, max_policy_lag: int = 1
    ) -> None:
        self.torch = make_update(spec, config, learner, max_policy_lag=max_policy_lag)
        self.torch.optimiser._measured = True  # a measurement of memory would draw, too
        self.runtime = EngineRuntime(learner, max_policy_lag=max_policy_lag)
        update: Any = algorithm_of(config).array_update(spec, self.runtime)
        assert update is not None, "the engine does not know these networks"
        self.arrays = update
        self.load_from_torch()
        orders = np.random.default_rng(7), np.random.default_rng(7)
        patch.setattr(self.runtime, "random", orders[0])
        patch.setattr(torch, "randperm", lambda items: torch.from_numpy(orders[1].permutation(items)))
        patch.setattr(torch, "randn_like", lambda like: torch.from_numpy(orders[1].standard_normal(like.shape, np.float32)))
        patch.setattr(torch, "randint", self._draw_integers(torch.randint, orders[1]))

    @staticmethod
    def _draw_integers(plain: Any, random: np.random.Generator) -> Any:
        """As torch.randint: updates name the device, tests that make a batch do not."""

        def draw(*bounds: Any, **options: Any) -> Tensor:
            return torch.from_numpy(random.integers(*bounds)) if "device" in options else plain(*bounds, **options)

        return draw

    def load_from_torch(self) -> None:
        for name, module in self.torch.modules.items():
            self.arrays.modules[name].load(in_arrays(module.state_dict()))

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
        theirs, ours = (
            {f"{name}/{key}": _copy(value) for name, module in each.modules.items() for key, value in module.state_dict().items()}
            for each in (self.torch, self.arrays)
        )
        assert list(theirs) == list(ours)
        assert all(value.shape == ours[name].shape and value.dtype == ours[name].dtype for name, value in theirs.items())
        return theirs, ours

    def apart(self, before: Weights) -> float:
        """How far the weights are from torch's, by the way that they have moved since `before`."""
        theirs, ours = self.weights()
        moved = np.concatenate([(value - before[name]).ravel() for name, value in theirs.items()])
        apart = np.concatenate([(value - ours[name]).ravel() for name, value in theirs.items()])
        assert np.isfinite(apart).all()
        return float(np.linalg.norm(apart) / np.linalg.norm(moved)) if moved.any() else float(apart.any())


def _copy(value: Any) -> np.ndarray:
    return np.array(value.numpy() if isinstance(value, Tensor) else value)
