"""R26: from the same seed the same weights, to the bit, and a resumed run's are those of one that went on."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.agent import Agent
from actors.chunker import Chunker
from actors.config import EnvConfig
from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.envs.vector import VectorEnv
from learner.algorithms.base import join
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks, to_device
from learner.saving import resume
from learner.weights.checkpoint import Checkpoints, load_into, pack
from replay.client.base import SampledBatch
from replay.config import ReplayConfig
from replay.table.layout import array_name, layout
from replay.table.ring import Ring
from tests.chaos.rows import Row
from tests.learner.acting import Acting, algorithm_of
from tests.learner.examples import AlgorithmConfig, make_update
from transport.experience import Chunk, ExperienceSpec, bounded

pytestmark = pytest.mark.chaos
CPU = torch.device("cpu")
ALGORITHMS: dict[str, tuple[AlgorithmConfig, str]] = {
    "dqn": (DqnConfig(hidden=16, n_step=3, target_update_interval=7), "CartPole-v1"),
    "sac": (SacConfig(hidden=16, hindsight=0), "Pendulum-v1"),
    "ppo": (PpoConfig(hidden=16, n_epochs=2, minibatches=2), "CartPole-v1"),
    "pqn": (PqnConfig(hidden=16, n_epochs=2, minibatches=2), "CartPole-v1"),
    "reppo": (ReppoConfig(hidden=16, n_epochs=2, minibatches=2), "Pendulum-v1"),
}


class Learning:
    """What can be saved and taken up again."""

    def __init__(self, spec: ExperienceSpec, config: AlgorithmConfig, batch_size: int) -> None:
        self.algorithm = make_update(spec, config, LearnerConfig(batch_size=batch_size))
        self.runtime = self.algorithm.optimiser.process

    def through_a_file(self, folder: Path, spec: ExperienceSpec, config: AlgorithmConfig, batch_size: int) -> Learning:
        """Another one, as a restarted process would make it."""
        Checkpoints(folder, 1).write(1, *resume.gather(self.algorithm, self.runtime, {}, {"epoch": "1"}))
        torch.manual_seed(987)
        resumed = Learning(spec, config, batch_size)
        found = Checkpoints(folder, 1).newest(pytest.fail)
        assert found is not None
        resume.restore(resumed.algorithm, resumed.runtime, found[1], found[2])
        return resumed


def run(name: str, epochs: int, seed: int, resumed_in: Path | None = None) -> str:
    """One actor, a table and a learner, each after the other. The sha256 of the last policy, in hex; half-way everything that a
    learner is goes through a checkpoint if there is a folder to be `resumed_in`."""
    torch.manual_seed(seed)
    config, env_id = ALGORITHMS[name]
    env_config = EnvConfig(id=env_id, chunk_length=16)
    vector = VectorEnv(env_config, _spec(env_config, config), 2, range(seed, seed + 2))
    spec, batch_size = _spec(env_config, config), 32
    learning = Learning(spec, config, batch_size)
    acting = Acting(spec, config)
    acting.assign(seed, count=2)
    network, agent = acting.network, Agent(spec, acting.policy, 2)
    table = Ring(spec, ReplayConfig(min_size=1, capacity=2_000), seed)
    chunker = Chunker(spec, 2, 1e9, annotate=acting.policy.annotate)
    observation = vector.reset()
    agent.reset(observation)
    waiting: list[Chunk] = []
    for epoch in range(epochs):
        load_into(network, {key: value.numpy().copy() for key, value in learning.algorithm.policy.state_dict().items()})
        acting.refresh()
        for _ in range(24):
            action, columns = agent.act("explore")
            step = vector.step(bounded(spec, action))
            done = (step.reward, step.terminated, step.truncated, step.final_observation)
            waiting += chunker.step(observation, action, *done, epoch, columns)
            agent.push(step.observation, step.terminated | step.truncated)
            observation = step.observation
        if resumed_in is not None and epoch == epochs // 2:
            learning = learning.through_a_file(resumed_in, spec, config, batch_size)
        waiting = _learn(learning, table, waiting)
    vector.close()
    return hashlib.sha256(pack(learning.algorithm.policy.state_dict())).hexdigest()


def _spec(env_config: EnvConfig, config: AlgorithmConfig) -> ExperienceSpec:
    env = make_env(env_config)
    try:
        given = experience_spec(env, env_config, "none")
        return join(given, algorithm_of(config).needs(given))
    finally:
        env.close()


def _learn(learning: Learning, table: Ring, waiting: list[Chunk]) -> list[Chunk]:
    """Some updates; gives the chunks that are not used yet."""
    algorithm: Any = learning.algorithm
    if table.spec.unit == "rollouts":
        while len(waiting) >= 2:
            algorithm.update(to_chunks(_rollouts(table.spec, waiting[:2]), table.spec, CPU))
            waiting = waiting[2:]
        return waiting
    for chunk in waiting:
        table.insert(chunk)
    arrangement = layout(table.spec, 32)
    for _ in range(4 if table.size else 0):
        arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        table.sample(arrays)
        batch = to_device(SampledBatch(0, 0, arrays), table.spec, CPU)
        _, priorities = algorithm.update(batch)
        table.update_priorities(arrays["key"], priorities.numpy())
    return []


def _rollouts(spec: ExperienceSpec, chunks: list[Chunk]) -> dict[str, np.ndarray]:
    arrangement = layout(spec, len(chunks))
    arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    for at, chunk in enumerate(chunks):
        for column in spec.resting:
            arrays[array_name(spec, column)][at][: spec.rows(chunk.length)] = chunk.columns[column.name]
        arrays["length"][at] = chunk.length
    return arrays


PASS_LINE = "two runs: the same sha256 of the weights after N updates; a resumed run's equals that of one that went on"


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.row("R26", "the same seed again (1 actor, CPU, in step); a resume in the middle", PASS_LINE)
def test_the_same_seed_gives_the_same_weights_and_so_does_a_resume(row: Row, tmp_path: Path, name: str) -> None:
    epochs = row.times(12, 400)
    first = run(name, epochs, seed=3)
    row.measured(name, epochs=epochs, sha256=first[:16])
    assert run(name, epochs, seed=3) == first, "another run"
    assert run(name, epochs, seed=3, resumed_in=tmp_path) == first, "a resumed run"
    assert run(name, epochs, seed=4) != first, "the seed does not count"
