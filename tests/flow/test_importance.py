"""PPO over the real wire: what the learner computes of an action's probability is what the actor that chose it told."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch

from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from deploy import settings
from deploy.config.files import write_config
from deploy.config.layers import layers, resolve
from learner.algorithms.base import join, make_algorithm
from learner.algorithms.ppo.config import PpoConfig
from learner.feed.batches import to_chunks
from learner.networks.describe import describe
from learner.serving.publish import WeightPublisher
from replay.client.base import SampledBatch
from replay.client.sampler import Sampler
from tests.harness.fleet import Fleet
from tests.harness.waiting import wait_until
from tests.learner.examples import make_update
from transport.experience import ExperienceSpec, write_spec
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

CPU = torch.device("cpu")
ENVS, CHUNK = 2, 16
LEARNING_RATE = 0.005  # moves the policy at each version, but leaves no action with a probability of 1, where every ratio is 1


class PpoFleet(Fleet):
    """One actor and replay as a run with --algo ppo has them; the test is the learner."""

    def __init__(self, path: Path, env_id: str, inference: str) -> None:  # the base's is about DQN
        flags = {
            "env": {"id": env_id, "chunk_length": CHUNK},
            "algorithm": {"name": "ppo", "hidden": 16},
            "actors": {"count": 1, "envs_per_actor": ENVS, "inference": inference},
            "learner": {"batch_size": ENVS * CHUNK},
        }
        self.config = resolve(layers(flags))
        self.run_dir = RunDir(path)
        self.run_dir.create()
        self.run_dir.config.write_bytes(write_config(self.config))
        settings.write(self.run_dir, self.config)
        algorithm = self.config.algorithm.options
        assert isinstance(algorithm, PpoConfig)
        given = experience_spec(make_env(self.config.env), self.config.env, "lz4")
        self.spec: ExperienceSpec = join(given, make_algorithm(self.config.algorithm).needs(given))
        self.run_dir.spec.write_bytes(write_spec(self.spec))
        torch.manual_seed(0)
        self.ppo = make_update(self.spec, algorithm, self.config.learner)
        self.run_dir.policy.write_bytes(msgspec.json.encode(describe(self.ppo.policy)))
        self.processes, self.samplers = {}, []
        bind = self.run_dir.bind_address
        self.publisher = WeightPublisher(bind("weights"), bind("payload"), new_incarnation())
        self.version = -1
        self.weights: dict[int, dict[str, torch.Tensor]] = {}
        self.publish()
        self.run_dir.write_endpoint("weights", self.publisher.addresses[0])
        self.run_dir.write_endpoint("payload", self.publisher.addresses[1])

    def publish(self) -> None:
        """The next version, of the network as it is."""
        self.version += 1
        self.weights[self.version] = {name: value.clone() for name, value in self.ppo.policy.state_dict().items()}
        assert self.publisher is not None
        self.publisher.publish(self.ppo.policy, self.version)

    def ratio(self, arrays: dict[str, np.ndarray], version: int) -> float:
        """Mean |ratio - 1| of a rollout to the policy of a version."""
        judge = make_update(self.spec, self.ppo.config)
        judge.policy.load_state_dict(self.weights[version])
        return float(judge.prepare(to_chunks(arrays, self.spec, CPU), False)[2]["ratio_first"])

    def learn(self, arrays: dict[str, np.ndarray]) -> None:
        """Moves the policy, running statistics included."""
        config = msgspec.structs.replace(self.ppo.config, n_epochs=1)
        update = make_update(self.spec, config, msgspec.structs.replace(self.config.learner, learning_rate=LEARNING_RATE))
        update.policy.load_state_dict(self.ppo.policy.state_dict())
        update.update(to_chunks(arrays, self.spec, CPU))
        self.ppo.policy.load_state_dict(update.policy.state_dict())


KINDS = {"choice": "CartPole-v1", "reals": "Pendulum-v1", "image": "tests.actors.toy_envs:Camera"}
CASES = [
    ("choice", "local"),
    pytest.param(("reals", "local"), marks=pytest.mark.slow),
    pytest.param(("image", "local"), marks=pytest.mark.slow),
    pytest.param(("reals", "batched"), marks=pytest.mark.slow),
    pytest.param(("image", "batched"), marks=pytest.mark.slow),
]


@pytest.fixture(params=CASES, ids="-".join)
def fleet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[PpoFleet]:
    kind, inference = request.param
    made = PpoFleet(tmp_path / "run", KINDS[kind], inference)
    if inference == "batched":
        made.start_inference()
    yield made
    made.close()


def take(sampler: Sampler) -> SampledBatch:
    found: list[SampledBatch] = []

    def came() -> bool:
        batch = sampler.next(0.5)
        found.extend([batch] if batch else [])
        return bool(found)

    wait_until(came, 60, "a rollout")
    return found[0]


@pytest.mark.flow
def test_the_ratio_is_one_under_the_weights_that_acted_and_no_rollout_is_older_than_one_version(fleet: PpoFleet) -> None:
    fleet.start_replay()
    fleet.start_actor(0)
    address = fleet.run_dir.wait_for_endpoint("replay", lambda: False)
    assert address is not None
    sampler = Sampler(address, "learner", new_incarnation(), fleet.spec, ENVS, 1)
    fleet.samplers.append(sampler)
    versions = []
    for _ in range(6):
        batch = take(sampler)
        acted = batch.arrays["policy_version"]  # [2, rows]
        inner = acted[:, fleet.spec.history + 1 : -1]
        # A chunk leaves with the row after it, which is the next one's first: that alone was acted before the chunk was drawn.
        assert inner.min() >= fleet.version - 1, "collected while the rollout before was learned from"
        version = int(inner.max())
        versions.append(version)
        own = batch.arrays | {"valid": (batch.arrays["valid"] != 0) & (acted == version)}
        assert fleet.ratio(own, version) < 1e-5
        if version:
            assert fleet.ratio(own, version - 1) > 1e-4, "a policy that has not moved would prove nothing"
        fleet.learn(batch.arrays)
        fleet.publish()
        sampler.oldest_version = fleet.version - 1
        sampler.release(batch)
    # As a rule one behind; an actor that was held up meanwhile has newer ones.
    assert all(max(number - 1, 0) <= version <= number for number, version in enumerate(versions))
