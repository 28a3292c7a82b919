"""What one of two processes learns from its half of every batch, or one process from all of it. `python -m` this, as a rank."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import psutil
import torch
from torch import Tensor, nn

from learner.algorithms.base import ActionBatch
from learner.algorithms.columns import memory_columns
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.update import Weighted
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.parallel.base import ALONE, Group, GroupBroken
from learner.parallel.group import join
from learner.updates.base import Chunks, Loss, Transitions
from learner.updates.trees import part
from tests.learner.algorithms.sac.test_update import make_batch as make_goal_batch
from tests.learner.algorithms.sac.test_update import make_spec as make_goal_spec
from tests.learner.examples import CPU, AlgorithmConfig, figures, make_batch, make_spec, make_update, vector
from tests.learner.rollouts import play, to_arrays
from tests.transport.columns import scalars
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec

ITEMS, UPDATES, ROLLOUTS = 64, 12, 4
# Adam enlarges what rounding makes of gradients near 0, which differs between processors; with a large epsilon it does not.
LEARNER = LearnerConfig(learning_rate=1e-2, adam_epsilon=1e-3, max_grad_norm=1.0)
DQN = make_spec(vector(), n_step=3)
PPO = ExperienceSpec((vector(),), Categorical(3), 8, 1, 1, unit="rollouts", extras=scalars(LOG_PROB))
REMEMBERING = msgspec.structs.replace(PPO, extras=(*PPO.extras, *memory_columns("lstm", 8)))
PQN = ExperienceSpec((vector(),), Categorical(3), 8, unit="rollouts")
REPPO = msgspec.structs.replace(PQN, action=Continuous((-1.0, -2.0), (1.0, 2.0)))
SAC = make_goal_spec()
NORMALISED: Any = {"normalize_observation": True, "normalize_reward": True}
CASES: dict[str, tuple[ExperienceSpec, AlgorithmConfig]] = {
    "dqn": (DQN, DqnConfig(hidden=16, n_step=3, target_update_interval=5, importance_exponent=0.8)),
    "dqn-normalised": (DQN, DqnConfig(hidden=16, n_step=3, importance_exponent=0.8, **NORMALISED)),
    "sac": (SAC, SacConfig(hidden=16)),
    "sac-normalised": (SAC, SacConfig(hidden=16, **NORMALISED)),
    "ppo": (PPO, PpoConfig(hidden=16, n_epochs=3, minibatches=1, target_kl=0.05)),
    "ppo-lstm": (REMEMBERING, PpoConfig(hidden=16, memory="lstm", memory_width=8, n_epochs=3, minibatches=1)),
    "ppo-normalised": (PPO, PpoConfig(hidden=16, n_epochs=3, minibatches=1, normalize_reward=True)),
    "ppo-minibatches": (PPO, PpoConfig(hidden=16, n_epochs=2, minibatches=3)),
    "pqn": (PQN, PqnConfig(hidden=16, n_epochs=3, minibatches=1)),
    "reppo": (REPPO, ReppoConfig(hidden=16, temperature=0.1, n_epochs=3, minibatches=1)),
}


def learn(case: str, group: Group = ALONE) -> dict[str, np.ndarray]:
    """All weights after some updates; the batches are always the same."""
    spec, config = CASES[case]
    torch.manual_seed(1)
    algorithm = make_update(spec, config, replace_accumulation(group), group)
    torch.manual_seed(2)
    for batch in rollouts(spec, group) if spec.unit == "rollouts" else batches(case, spec, group):
        measured, _ = algorithm.update(batch)
    numbers = {"gradient_norm": float(measured["gradient_norm"]), "skipped": figures(algorithm)["skipped_updates"]}
    return weights_of(algorithm) | {name: np.array(value) for name, value in (numbers | algorithm.counters).items()}


def batches(case: str, spec: ExperienceSpec, group: Group) -> Iterator[Transitions]:
    """A rank's shares of the same batches."""
    make = make_batch if case.startswith("dqn") else make_goal_batch
    yield from [share(batch, group) for batch in [make(spec, ITEMS) for _ in range(UPDATES)]]


def learn_nothing(case: str) -> dict[str, np.ndarray]:
    """The weights before."""
    torch.manual_seed(1)
    return weights_of(make_update(*CASES[case]))


def weights_of(algorithm: Any) -> dict[str, np.ndarray]:
    """Of all modules, by name."""
    return {
        f"{kind}/{name}": value.detach().numpy().copy()
        for kind, module in algorithm.modules.items()
        for name, value in module.state_dict().items()
    }


def replace_accumulation(group: Group) -> LearnerConfig:
    """Rank 1 takes its batches in parts, as one that had too little memory would."""
    return msgspec.structs.replace(LEARNER, batch_size=ITEMS // group.size, accumulation=4 if group.rank else 1)


def share(batch: Transitions, group: Group) -> Transitions:
    """A rank's part of what a single process has as a whole."""
    size = ITEMS // group.size
    return part(batch, group.rank * size, (group.rank + 1) * size)


def rollouts(spec: ExperienceSpec, group: Group) -> Iterator[Chunks]:
    """Chunks of a random policy; rank 0 of two gets those of the first streams, which are fewer, so that ranks' rollouts differ
    in length."""
    for seed in range(ROLLOUTS):
        chunks, _ = play(spec, partial(acted, spec, np.random.default_rng(seed)), 6, 20, seed)
        mine = [chunk for chunk in chunks if group.size == 1 or (chunk.stream < 2) == (group.rank == 0)]
        yield to_chunks(to_arrays(spec, mine), spec, CPU)


def acted(spec: ExperienceSpec, random: np.random.Generator, stacked: Columns) -> ActionBatch:
    """At random, among three or of reals; so is the state of a memory."""
    count = len(stacked["vector"])
    log_prob = np.full(count, np.log(1 / 3), np.float32)
    real = isinstance(spec.action, Continuous)
    action = random.standard_normal((count, 2), np.float32) if real else random.integers(3, size=count)
    state = {column.name: random.standard_normal((count, *column.shape), np.float32) for column in spec.extras if column.once}
    return ActionBatch(action, {LOG_PROB: log_prob} | state, {})


def fixed_noise(like: Tensor) -> Tensor:
    """Instead of random numbers: the same for an item in whatever batch it comes."""
    return torch.sin(20 * like + torch.arange(like.shape[1]))


def one_breaks(group: Group) -> dict[str, np.ndarray]:
    """The gradient of rank 1 is not finite once: no process may take that step."""
    torch.manual_seed(1)
    algorithm = make_update(DQN, DqnConfig(hidden=16, n_step=3), LEARNER, group)
    loss = algorithm.loss
    for number in range(3):
        factor = np.nan if number == 1 and group.rank == 1 else 1.0

        def breaking(items: Weighted, factor: float = factor) -> Loss:
            found: Loss = loss(items)
            return found._replace(value=found.value * factor)

        algorithm.loss = breaking
        algorithm.update(make_batch(DQN, 8))
    weights = {name: value.detach().numpy().copy() for name, value in algorithm.policy.state_dict().items()}
    return weights | {"skipped": np.array(figures(algorithm)["skipped_updates"])}


def running_statistics(group: Group) -> dict[str, np.ndarray]:
    """Every rank has seen something else; then all have what rank 0 had."""
    torch.manual_seed(group.rank)
    module = nn.BatchNorm1d(3)
    module(torch.randn(10 + group.rank, 3))
    before = module.running_mean.clone()  # type: ignore[union-attr]
    group.equalise(module.buffers())
    return {"before": before.numpy()} | {name: value.numpy().copy() for name, value in module.named_buffers()}


class Beating:
    """Leaves a trace after many beats."""

    stopping = False

    def __init__(self, folder: Path) -> None:
        self.folder, self.beats = folder, 0

    def beat(self) -> None:
        self.beats += 1
        if self.beats == 30:
            (self.folder / "beaten").touch()


def main(folder: Path) -> None:
    """Everything that two ranks can be seen to do, one thing after the other."""
    torch.set_num_threads(1)
    torch.randn_like = fixed_noise  # type: ignore[assignment]
    group = join(CPU, Beating(folder))
    for case in CASES:
        np.savez(folder / f"{case}-{group.rank}.npz", **learn(case, group))  # type: ignore[arg-type]
    np.savez(folder / f"broken-{group.rank}.npz", **one_breaks(group))  # type: ignore[arg-type]
    np.savez(folder / f"statistics-{group.rank}.npz", **running_statistics(group))  # type: ignore[arg-type]
    answers = {
        "any": [group.any(False), group.any(group.rank == 1)],
        "least": group.least(10 + group.rank),
        "total": group.total(10 + group.rank),
        "listening": [entry.laddr.ip for entry in psutil.Process().net_connections("inet") if entry.status == "LISTEN"],
    }
    if group.rank == 1:  # has no batch before the other has beaten often
        while not (folder / "beaten").exists():
            pass
    answers["waited"] = group.any(False)
    (folder / f"answers-{group.rank}.json").write_text(json.dumps(answers))
    if group.rank == 1:
        os._exit(0)  # without a word
    try:
        while True:
            group.total(1)
    except GroupBroken:
        (folder / "broken").touch()
    os._exit(0)  # as a learner exits: gloo's threads may abort a process that finalises the interpreter after a broken collective


if __name__ == "__main__":
    main(Path(sys.argv[1]))
