"""One update of every shipped algorithm on made-up batches: what is checked on a device beside the CPU."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from learner.algorithms.base import find_algorithm, join
from learner.computing.trial import dummy_batch
from learner.config import LearnerConfig
from learner.feed.batches import to_batch
from learner.updates.base import Batch, Update
from learner.updates.runtime import LearnerRuntime
from transport.experience import ACTION_MASK, Categorical, Columns, Continuous, ExperienceSpec, observed

IMAGE = (observed("image", (84, 84), "|u1", 1 / 255),)
VECTOR = (observed("vector", (8,), "<f4"),)
GOALS = tuple(observed(name, (size,), "<f4") for name, size in (("vector", 8), ("achieved_goal", 3), ("desired_goal", 3)))
MASKED = (*VECTOR, observed(ACTION_MASK, (3,), "|u1"))
REALS = Continuous((-1.0,) * 2, (1.0,) * 2)
CHUNK = 16  # rows


class Case(NamedTuple):
    """An algorithm by name, its options, and what it learns from."""

    name: str
    algorithm: str
    options: dict[str, Any]
    fields: tuple[Any, ...]
    action: Categorical | Continuous

    @property
    def images(self) -> bool:
        return self.fields is IMAGE


def _cases() -> list[Case]:
    few, many = Categorical(3), Categorical(6)
    return [
        Case("dqn vector", "dqn", {}, VECTOR, few),
        Case("dqn image", "dqn", {}, IMAGE, many),
        Case("dqn batchnorm", "dqn", {"network": "nature_batchnorm"}, IMAGE, many),
        Case("dqn unscaled", "dqn", {"normalize_reward": False, "target_update_interval": 1}, VECTOR, few),
        Case("dqn averaged", "dqn", {"average_updates": 10}, VECTOR, few),
        Case("dqn masked", "dqn", {}, MASKED, Categorical(3, masked=True)),
        Case("ppo vector", "ppo", {}, VECTOR, few),
        Case("ppo image", "ppo", {"n_epochs": 3}, IMAGE, many),
        Case("ppo continuous", "ppo", {}, VECTOR, REALS),
        Case("ppo normalize_reward", "ppo", {"normalize_reward": True}, VECTOR, few),
        Case("ppo adaptive_kl", "ppo", {"adaptive_kl": 0.01}, VECTOR, few),
        Case("ppo annealed", "ppo", {"anneal_steps": 1_000, "learning_rate_end": 0.1, "ent_coef_end": 0.0}, VECTOR, few),
        Case("ppo target_kl", "ppo", {"target_kl": 1e9, "n_epochs": 4}, VECTOR, few),
        Case("ppo lstm", "ppo", {"memory": "lstm"}, VECTOR, few),
        Case("ppo gru", "ppo", {"memory": "gru", "normalize_reward": True, "adaptive_kl": 0.01}, VECTOR, REALS),
        Case("ppo masked", "ppo", {}, MASKED, Categorical(3, masked=True)),
        Case("pqn vector", "pqn", {}, VECTOR, few),
        Case("pqn image", "pqn", {}, IMAGE, many),
        Case("reppo vector", "reppo", {}, VECTOR, REALS),
        Case("sac vector", "sac", {}, VECTOR, REALS),
        Case("sac goals", "sac", {}, GOALS, REALS),
        Case("r2d2 vector", "r2d2", {}, VECTOR, few),
        Case("r2d2 image", "r2d2", {}, IMAGE, many),
        Case("r2d2 gru", "r2d2", {"memory": "gru"}, VECTOR, few),
    ]


CASES = {case.name: case for case in _cases()}


class Learning(NamedTuple):
    """An update on a device, and a batch there."""

    update: Update
    batch: Batch
    runtime: LearnerRuntime

    def figures(self) -> dict[str, float]:
        """Learns from the batch once; the metrics, and those of the optimisers."""
        metrics = self.update.update(self.batch).metrics | self.runtime.figures()
        return {name: float(value) for name, value in metrics.items()}


def learning(case: Case, device: torch.device, items: int = 64, chunk: int = CHUNK, **learner: Any) -> Learning:
    """`items`: steps of a batch. `learner`: settings of the section. Networks and batches are the same at each call."""
    Algorithm = find_algorithm(case.algorithm)
    algorithm = Algorithm(msgspec.convert(case.options, Algorithm.Config))
    env = ExperienceSpec(case.fields, case.action, chunk, 4 if case.images else 1)
    spec = join(env, algorithm.needs(env))
    config = msgspec.convert({"batch_size": items, "device": "cpu", **learner}, LearnerConfig)
    torch.manual_seed(1)
    runtime = LearnerRuntime(config, device)
    update = algorithm.update(spec, runtime)
    tensors = {name: torch.from_numpy(array) for name, array in made_up(spec, config.batch_items(spec)).items()}
    return Learning(update, to_batch(tensors, spec, device), runtime)


def made_up(spec: ExperienceSpec, items: int) -> Columns:
    """The arrays of a batch of `items`, transitions or chunks, as replay has them: any numbers, episodes that end in any way."""
    random = np.random.default_rng(3)
    arrays = dummy_batch(spec, items)
    for name, array in arrays.items():
        if array.dtype.kind == "f":
            array[:] = random.random(array.shape, np.float32) + 0.1
        elif name.startswith("observation/"):
            array[:] = random.integers(0, 256, array.shape)
    if isinstance(spec.action, Categorical):
        arrays["action"][:] = random.integers(0, spec.action.n, arrays["action"].shape)
    if "log_prob" in arrays:
        arrays["log_prob"][:] = -2.0
    for name, array in arrays.items():
        if name == "reward" or (name.startswith("observation/") and array.dtype.kind == "f"):
            array[:] = random.normal(size=array.shape)
        elif name == f"observation/{ACTION_MASK}":
            array[:] = random.integers(0, 2, array.shape)
    arrays["terminated"][:] = random.random(arrays["terminated"].shape) < 0.1
    if spec.unit != "transitions":
        rows = arrays["valid"].shape[1]
        arrays["truncated"][:, rows // 2] = 1
        arrays["valid"][:, rows // 2 + 1] = 0  # an episode's last observation
        arrays["episode_step"][:, rows // 2 + 2 :] -= arrays["episode_step"][:, rows // 2 + 2, None]
    return arrays
