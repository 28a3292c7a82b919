"""Specs and batches for the learner's tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import Parameter

from learner.algorithms.base import Algorithm, make_algorithm
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.algorithm import Ppo
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.r2d2.algorithm import R2d2
from learner.algorithms.r2d2.config import R2d2Config
from learner.algorithms.reppo.algorithm import Reppo
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.algorithm import Sac
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.parallel.base import ALONE, Group
from learner.updates.base import Transitions
from learner.updates.runtime import LearnerRuntime
from transport.experience import Categorical, Column, ExperienceSpec, observed
from transport.names import Named

CPU = torch.device("cpu")
LEARNER = LearnerConfig()
AlgorithmConfig = DqnConfig | PpoConfig | PqnConfig | ReppoConfig | SacConfig


def image(name: str = "image", shape: tuple[int, ...] = (84, 84)) -> Column:
    return observed(name, shape, "|u1", 1 / 255)


def vector(name: str = "vector", size: int = 4) -> Column:
    return observed(name, (size,), "<f4")


def make_spec(*fields: Column, n: int = 3, stack: int = 1, n_step: int = 1) -> ExperienceSpec:
    return ExperienceSpec(tuple(fields), Categorical(n), 16, stack, n_step)


def make_observation(fields: Sequence[Column], axes: tuple[int, ...]) -> dict[str, torch.Tensor]:
    return {
        field.name: torch.randint(256, (*axes, *field.shape), dtype=torch.uint8)
        if field.dtype == "|u1"
        else torch.randn(*axes, *field.shape)
        for field in fields
    }


def make_batch(spec: ExperienceSpec, items: int) -> Transitions:
    """Random items with every m from 1 to n_step, some terminated."""
    assert isinstance(spec.action, Categorical)
    steps = torch.randint(1, spec.n_step + 1, (items,))
    stack = torch.arange(spec.stack)
    return Transitions(
        observation=make_observation(spec.fields, (items, spec.stack + spec.n_step)),
        observation_index=stack.expand(items, -1),
        next_index=stack + steps[:, None],
        action=torch.randint(spec.action.n, (items,)),
        reward=torch.randn(items, spec.n_step),
        steps=steps,
        terminated=torch.rand(items) < 0.3,
        probability=torch.rand(items, dtype=torch.float64) + 0.01,
        extras={},
    )


CLASSES: dict[type, Any] = {
    DqnConfig: Dqn,
    PpoConfig: Ppo,
    PqnConfig: Pqn,
    R2d2Config: R2d2,
    ReppoConfig: Reppo,
    SacConfig: Sac,
}


def algorithm_of(config: Any) -> Algorithm:
    """The built-in algorithm with these options; or what is named."""
    if isinstance(config, Named):
        return make_algorithm(config)
    made: Algorithm = CLASSES[type(config)](config)
    return made


def make_update(
    spec: ExperienceSpec,
    config: Any,
    learner: LearnerConfig = LEARNER,
    group: Group = ALONE,
    device: torch.device = CPU,
    max_policy_lag: int = 1,
) -> Any:
    """What the algorithm with these options learns with: `.optimiser` is its own, `.optimiser.process` the runtime."""
    return algorithm_of(config).update(spec, LearnerRuntime(learner, device, group, max_policy_lag=max_policy_lag))


def figures(update: Any) -> dict[str, float]:
    """What the optimisers of an update have to tell beside its own metrics."""
    return {name: float(value) for name, value in update.optimiser.process.figures().items()}


def gradients(loss: Tensor, parameters: Sequence[Parameter]) -> list[Tensor]:
    """What backward() gives the parameters, which forget it again."""
    loss.backward()  # type: ignore[no-untyped-call]
    found = []
    for parameter in parameters:
        assert parameter.grad is not None
        found.append(parameter.grad)
        parameter.grad = None
    return found


def weights_of(module: torch.nn.Module) -> dict[str, np.ndarray]:
    """As they travel: copies."""
    return {name: value.numpy().copy() for name, value in module.state_dict().items()}
