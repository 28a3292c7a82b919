"""A run goes from one engine to the other and back, by the same files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.base import join
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.engine.runtime import EngineRuntime
from learner.saving import resume
from learner.updates.base import Backend, Update
from learner.weights.checkpoint import Checkpoints, as_array
from tests.learner.algorithms.sac import test_update as sac
from tests.learner.algorithms.sequences import batch_of, collect
from tests.learner.engine.arrays import in_arrays
from tests.learner.examples import algorithm_of, make_batch, make_spec, make_update, vector
from transport.experience import Categorical, Continuous, ExperienceSpec

LEARNER = LearnerConfig(batch_size=8, learning_rate=1e-2, adam_epsilon=1e-3)
STATISTICS: dict[str, Any] = {"normalize_observation": True, "normalize_reward": True}
ENV = ExperienceSpec((vector(),), Categorical(3), 8)
REALS = ExperienceSpec((vector(),), Continuous((-1.0, -2.0), (1.0, 2.0)), 8)
# The order of items makes no difference to these: each engine has random numbers of its own.
CASES: dict[str, tuple[Any, ExperienceSpec]] = {
    "dqn": (DqnConfig(hidden=8, n_step=2, target_update_interval=3, **STATISTICS), make_spec(vector(), n_step=2)),
    "dqn, averaged": (DqnConfig(hidden=8, n_step=2, average_updates=5), make_spec(vector(), n_step=2)),
    "ppo": (PpoConfig(hidden=8, n_epochs=2, minibatches=1, adaptive_kl=0.01, anneal_steps=500, **STATISTICS), ENV),
    "pqn": (PqnConfig(hidden=8, n_epochs=2, minibatches=1, normalize_observation=True), ENV),
}


# These draw actions.
DRAWING: dict[str, tuple[Any, ExperienceSpec]] = {
    "reppo": (ReppoConfig(hidden=8, n_epochs=2, minibatches=2), REALS),
    "sac": (SacConfig(hidden=8, **STATISTICS), sac.make_spec(hindsight=4)),
}


class Side:
    """An update by one of the engines."""

    def __init__(self, update: Update, runtime: Backend) -> None:
        self.update, self.runtime = update, runtime

    def learn(self, batch: Any) -> None:
        self.update.update(batch if self.runtime.library == "torch" else in_arrays(batch))

    def gather(self) -> resume.Contents:
        return resume.gather(self.update, self.runtime, {"updates": 5.0}, {"epoch": "1"})

    def tensors(self) -> dict[str, np.ndarray]:
        return {name: as_array(value).copy() for name, value in self.gather()[0].items()}


def sides(config: Any, spec: ExperienceSpec, seed: int) -> tuple[Side, Side]:
    torch.manual_seed(seed)
    by_torch, runtime = make_update(spec, config, LEARNER), EngineRuntime(LEARNER, seed)
    arrays = algorithm_of(config).array_update(spec, runtime)
    assert arrays is not None
    return Side(by_torch, by_torch.optimiser.process), Side(arrays, runtime)


def carry(source: Side, target: Side, folder: Path) -> None:
    """By a file."""
    checkpoints = Checkpoints(folder, keep=1)
    checkpoints.write(len(checkpoints.paths()), *source.gather())
    found = checkpoints.newest(pytest.fail)
    assert found is not None
    assert resume.restore(target.update, target.runtime, found[1], found[2]) == {"updates": 5.0}


def batches_of(spec: ExperienceSpec, played: Side, count: int) -> list[Any]:
    """By torch; rollouts are those of the policy of `played`."""
    if spec.unit == "rollouts":
        return [batch_of(spec, collect(played.update)[0], harsh=False) for _ in range(count)]
    return [(sac.make_batch if isinstance(spec.action, Continuous) else make_batch)(spec, 8) for _ in range(count)]


@pytest.mark.parametrize("name", CASES)
def test_a_run_that_changes_engines_at_every_resume_learns_what_it_learns_by_one(name: str, tmp_path: Path) -> None:
    config, env = CASES[name]
    spec = join(env, algorithm_of(config).needs(env)) if env is ENV else env
    straight, _ = sides(config, spec, 3)
    now, other = sides(config, spec, 3)
    begun = straight.tensors()
    for turn in range(6):
        for batch in batches_of(spec, straight, 4):
            straight.learn(batch)
            now.learn(batch)
        before = now.tensors()
        carry(now, other, tmp_path)
        after = other.tensors()
        assert {name for name in before if not name.startswith("random/")} <= after.keys() <= before.keys() | {"random/engine"}
        for key, value in before.items():
            assert after[key].dtype == value.dtype
            ulp = 1e-6 if "exp_avg" in key else 0.0  # the engine keeps moments in another scale
            np.testing.assert_allclose(after[key], value, ulp, err_msg=f"{key} after change {turn + 1}")
        assert other.update.counters == now.update.counters
        now, other = other, now
    expected, found = straight.tensors(), now.tensors()
    weights = [key for key in expected if not key.startswith("random/")]
    moved = np.concatenate([(expected[key] - begun[key] if key in begun else expected[key]).ravel() for key in weights])
    apart = np.concatenate([(expected[key] - found[key]).ravel() for key in weights])
    assert np.linalg.norm(apart) < 1e-4 * np.linalg.norm(moved)


@pytest.mark.parametrize("name", [*CASES, *DRAWING])
def test_a_learner_by_the_engine_goes_on_exactly_as_one_that_was_not_stopped(name: str, tmp_path: Path) -> None:
    config, env = {**CASES, **DRAWING}[name]
    spec = join(env, algorithm_of(config).needs(env)) if env in (ENV, REALS) else env
    by_torch, straight = sides(config, spec, 3)
    _, resumed = sides(config, spec, 99)
    batches = batches_of(spec, by_torch, 8)
    for each, some in ((straight, batches[:4]), (resumed, batches[2:5])):  # whatever was there is replaced
        for batch in some:
            each.learn(batch)
    carry(straight, resumed, tmp_path)
    for each in (straight, resumed):
        for batch in batches[4:]:
            each.learn(batch)
    expected, found = straight.tensors(), resumed.tensors()
    assert expected.keys() == found.keys() and all(np.array_equal(value, found[key]) for key, value in expected.items())
    assert straight.update.counters == resumed.update.counters


@pytest.mark.parametrize("name", DRAWING)
def test_a_checkpoint_that_goes_to_torch_and_back_has_lost_nothing(name: str, tmp_path: Path) -> None:
    config, env = DRAWING[name]
    spec = join(env, algorithm_of(config).needs(env)) if env is REALS else env
    by_torch, arrays = sides(config, spec, 3)
    for batch in batches_of(spec, by_torch, 3):
        arrays.learn(batch)
    before = arrays.tensors()
    carry(arrays, by_torch, tmp_path)
    by_torch.learn(batches_of(spec, by_torch, 1)[0])  # it can go on
    carry(arrays, by_torch, tmp_path)
    _, back = sides(config, spec, 99)
    carry(by_torch, back, tmp_path)
    after = back.tensors()
    assert before.keys() <= after.keys()
    for key, value in before.items():
        np.testing.assert_allclose(after[key], value, 1e-6 if "exp_avg" in key else 0.0, err_msg=key)


def test_what_only_one_of_them_has_seen_is_not_lost(tmp_path: Path) -> None:
    """The random numbers of the engine that rests are in the files of the other."""
    config, spec = CASES["dqn"]
    by_torch, arrays = sides(config, spec, 3)
    rested = torch.get_rng_state()
    carry(by_torch, arrays, tmp_path)
    assert isinstance(arrays.runtime, EngineRuntime)
    arrays.runtime.random.random(5)
    expected = np.random.default_rng(3)
    expected.bit_generator.state = arrays.runtime.random.bit_generator.state
    torch.rand(9)
    carry(arrays, by_torch, tmp_path)
    assert torch.equal(torch.get_rng_state(), rested)
    arrays.runtime.random.random(9)
    carry(by_torch, arrays, tmp_path)
    assert arrays.runtime.random.random() == expected.random()
