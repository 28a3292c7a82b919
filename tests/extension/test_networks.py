"""Every algorithm acts and learns by a network of another package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from learner.algorithms.base import find_algorithm, join
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.inference.base import Inference
from learner.inference.module import Module, infer_by
from learner.inference.program import Program
from learner.networks.base import PolicyModule
from learner.updates.base import Transitions
from learner.updates.runtime import LearnerRuntime
from tests.learner.examples import CPU, make_observation, vector
from tests.learner.rollouts import play, to_arrays
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec

FIELDS = (vector(size=5), vector("more", 3))
REALS = Continuous((-1.0, -2.0), (1.0, 3.0))
ITEMS, UPDATES = 32, 60


def batch_of(spec: ExperienceSpec) -> Transitions:
    index = torch.arange(spec.stack).expand(ITEMS, -1)
    categorical = isinstance(spec.action, Categorical)
    return Transitions(
        observation=make_observation(spec.fields, (ITEMS, spec.stack + 1)),
        observation_index=index,
        next_index=index + 1,
        action=torch.randint(3, (ITEMS,)) if categorical else torch.randn(ITEMS, 2),
        reward=torch.randn(ITEMS, 1),
        steps=torch.ones(ITEMS, dtype=torch.int64),
        terminated=torch.ones(ITEMS, dtype=torch.bool),
        probability=torch.full((ITEMS,), 0.01, dtype=torch.float64),
        extras={},
    )


def rollout_of(spec: ExperienceSpec, algorithm: Any, inference: Inference) -> Any:
    policy = algorithm.acting(spec, inference)
    chunks, _ = play(spec, lambda stacked: policy.act(stacked, {}, "explore"), streams=4, steps=40, seed=2)
    return to_chunks(to_arrays(spec, chunks), spec, CPU)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("torso", "kind"), [("Residual", Module), ("normalised", Program)])
@pytest.mark.parametrize(
    ("name", "action", "learned"), [("dqn", Categorical(3), "td"), ("sac", REALS, "td"), ("ppo", Categorical(3), "value_loss")]
)
def test_it_acts_and_learns_by_the_torso(name: str, action: Any, learned: str, torso: str, kind: type) -> None:
    torch.manual_seed(0)
    found = find_algorithm(name)
    options = {"network": f"tests.extension.networks:{torso}", "network_options": {"width": 24}, "gamma": 0.0}  # fixed targets
    algorithm = found(found.Config(**options))
    env = ExperienceSpec(FIELDS, action, 16, 2)
    spec = join(env, algorithm.needs(env)) if name == "ppo" else env
    runtime = LearnerRuntime(LearnerConfig(batch_size=ITEMS, learning_rate=3e-3), CPU)
    update: Any = algorithm.update(spec, runtime)
    policy = update.modules["policy"]
    assert isinstance(policy, PolicyModule) and policy.body.features == 24

    inference = infer_by(policy)
    assert isinstance(inference, kind)
    seen = make_observation(spec.fields, (7, 2))
    arrays: Columns = {field: rows.numpy() for field, rows in seen.items()}
    with torch.no_grad():
        np.testing.assert_allclose(inference(arrays, {})[0], policy(seen), rtol=1e-4, atol=1e-4)

    before = [parameter.detach().clone() for parameter in policy.body.torso.parameters()]
    batch = rollout_of(spec, algorithm, inference) if name == "ppo" else batch_of(spec)
    measured = [float(update.update(batch).metrics[learned]) for _ in range(10 if name == "ppo" else UPDATES)]
    assert measured[-1] < 0.7 * measured[0], measured
    for was, now in zip(before, policy.body.torso.parameters(), strict=True):
        assert now.isfinite().all() and not torch.equal(was, now)
