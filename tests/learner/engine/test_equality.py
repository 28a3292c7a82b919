"""Updates by the engine against those by torch, on random networks and batches: the same weights, metrics and priorities.

To add an algorithm, add a function to CASES that draws one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.base import join
from learner.algorithms.columns import HINDSIGHT_GOAL, HINDSIGHT_REWARD
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.algorithm import Ppo
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.algorithms.reppo.algorithm import Reppo
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.algorithm import Sac
from learner.algorithms.sac.config import SacConfig
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks
from learner.updates.base import Chunks, Transitions
from tests.learner.acting import Acting
from tests.learner.engine.arrays import in_arrays
from tests.learner.engine.pairs import Pair, distance, weights_of
from tests.learner.examples import CPU, make_batch, make_spec, vector
from tests.learner.rollouts import play, to_arrays
from transport.experience import ACTION_MASK, Categorical, Column, Continuous, ExperienceSpec, MultiCategorical, observed

NETWORKS, TOGETHER = 200, 20  # of each algorithm; in one test
FIRST = [
    pytest.param(first, marks=[pytest.mark.slow] if first >= NETWORKS // 5 else []) for first in range(0, NETWORKS, TOGETHER)
]
STEPS, APART = 50, 1e-5  # of the way that the weights have moved
MASK = observed(ACTION_MASK, (3,), "|u1")


class Case(NamedTuple):
    """A random network, and what gives it batches."""

    spec: ExperienceSpec
    config: Any
    learner: LearnerConfig
    batch: Callable[[Pair, float], Any]  # pair, share of rewards that are not finite
    max_policy_lag: int = 1


def fields(random: np.random.Generator, goal: bool = False) -> tuple[Column, ...]:
    """One to three vectors, some of them quantised, and half of the time a mask."""
    known = [vector(), vector("other", 2), observed("angle", (3,), "|u1", 0.02, -2.5)]
    if goal and random.random() < 0.3:
        known += [vector("achieved_goal", 2), vector("desired_goal", 2)]
        return tuple(known)
    some = [column for column in known if random.random() < 0.6] or known[:1]
    return tuple(some if random.random() < 0.5 else [*some, MASK])


def learner(random: np.random.Generator, highest: float = 1e-2) -> LearnerConfig:
    return LearnerConfig(
        batch_size=32,
        learning_rate=highest * float(10.0 ** random.uniform(-2, 0)),
        adam_epsilon=float(10.0 ** random.uniform(-6, -3)),
        max_grad_norm=float(random.choice([0.1, 1.0, 10.0])),
    )


def spoilt(batch: Any, odd: float, random: np.random.Generator) -> Any:
    """With some rewards that are not finite, and half of the time an observation with NaN: then no step is taken."""
    batch.reward[torch.rand(batch.reward.shape) < odd] = float(random.choice([np.nan, np.inf, -np.inf]))
    for values in batch.observation.values():
        if odd and values.is_floating_point() and random.random() < 0.5:
            values[:, :-1].flatten(2)[1, :, 0] = np.nan
    return batch


def choose(random: np.random.Generator, **options: tuple[Any, ...]) -> dict[str, Any]:
    return {name: values[random.integers(len(values))] for name, values in options.items()}


def dqn(seed: int) -> Case:
    random = np.random.default_rng(seed)
    known, stack, n_step = fields(random), int(random.integers(1, 4)), int(random.integers(1, 6))
    spec = make_spec(*known, stack=stack, n_step=n_step)
    if MASK in known:
        spec = msgspec.structs.replace(spec, action=Categorical(3, masked=True))
    options = choose(
        random,
        network=("mlp", "mlp", "mlp", "linear"),
        double=(True, False),
        munchausen=(0.0, 0.0, 0.9),
        conservative=(0.0, 0.0, 1.0),
        entropy_temperature=(0.03, 1.0),
        dueling=(True, False),
        gamma=(0.0, 0.9, 1.0),
        clip_rewards=(True, False),
        reward_scale=(1.0, 0.1, 200.0),
        normalize_reward=(True, False),
        normalize_observation=(True, False),
        importance_exponent=(0.0, 0.4, 1.0),
        target_update_interval=(1, 7, 1_000),
        average_updates=(0, 100),
        hidden=(4, 16, 40),
    )
    if options["network"] == "mlp":
        options["network_options"] = choose(random, layers=(1, 2, 3), activation=("relu", "tanh"), layer_norm=(True, False))

    def batch(pair: Pair, odd: float) -> Transitions:
        found = make_batch(spec, 32)
        if MASK in known:
            found.observation[ACTION_MASK].remainder_(2)
        return spoilt(found, odd, random)

    return Case(spec, msgspec.convert(options, DqnConfig), learner(random), batch)


def pqn(seed: int) -> Case:
    random = np.random.default_rng(seed)
    known = fields(random, goal=True)
    env = ExperienceSpec(known, Categorical(3, masked=MASK in known), 8, int(random.integers(1, 4)))
    options = choose(
        random,
        gamma=(0.0, 0.9, 1.0),
        q_lambda=(0.0, 0.7, 1.0),
        n_epochs=(1, 2),
        minibatches=(1, 3),
        clip_rewards=(True, False),
        reward_scale=(1.0, 0.1),
        network=("mlp", "mlp", "linear"),
        normalize_observation=(True, False),
        layers=(1, 2, 3),
        layer_norm=(True, False),
        hidden=(4, 16, 40),
    )
    config = msgspec.convert(options, PqnConfig)
    spec = join(env, Pqn(config).needs(env))

    def batch(pair: Pair, odd: float) -> Chunks:
        found = rolled(spec, config, pair.torch.policy, int(random.integers(1_000)))
        return spoilt(found, odd, random)

    return Case(spec, config, learner(random), batch)


def ppo(seed: int) -> Case:
    random = np.random.default_rng(seed)
    known = fields(random, goal=True)
    masked = MASK in known
    others = MultiCategorical((3, 2)), Continuous((-1.0, -2.0), (1.0, 2.0)), Continuous((-1.0,), (1.0,)), Categorical(3)
    action = Categorical(3, masked=True) if masked else others[random.integers(len(others))]
    env = ExperienceSpec(known, action, 8, int(random.integers(1, 4)))
    options = choose(
        random,
        gamma=(0.9, 0.99),
        gae_lambda=(0.0, 0.9, 1.0),
        n_epochs=(1, 2),
        minibatches=(1, 3),
        clip_range_vf=(0.0, 0.1),
        ent_coef=(0.0, 0.02),
        target_kl=(0.0, 1e-3),
        normalize_advantage=(True, False),
        normalize_observation=(True, False),
        normalize_reward=(True, False),
        clip_rewards=(True, False),
        reward_scale=(1.0, 0.1, 200.0),
        network=("mlp", "mlp", "linear"),
        layers=(1, 2, 3),
        hidden=(4, 16, 40),
        shared=(False, True),
    )
    config = msgspec.convert(options, PpoConfig)
    spec = join(env, Ppo(config).needs(env))

    def batch(pair: Pair, odd: float) -> Chunks:
        found = rolled(spec, config, pair.torch.policy, int(random.integers(1_000)))
        return spoilt(found, odd, random)

    return Case(spec, config, learner(random), batch, int(random.choice([1, 4])))


def reppo(seed: int) -> Case:
    random = np.random.default_rng(seed)
    actions = Continuous((-1.0, -2.0), (1.0, 2.0)), Continuous((-1.0,), (1.0,))
    env = ExperienceSpec(fields(random, goal=True), actions[random.integers(2)], 8, int(random.integers(1, 4)))
    options = choose(
        random,
        gamma=(0.0, 0.9, 0.99),
        q_lambda=(0.0, 0.7, 1.0),
        kl_bound=(1e-3, 0.1),
        kl_coef=(0.1, 2.0),
        kl_coef_rate=(3e-4, 1e-2),
        temperature=(0.05, 0.5),  # lower, the gradient of a saturated tanh would be all, and that is rounding
        temperature_rate=(3e-4, 1e-2),
        n_epochs=(1, 2),
        minibatches=(1, 3),
        clip_rewards=(True, False),
        reward_scale=(1.0, 0.1, 200.0),
        normalize_observation=(True, False),
        critics=(1, 2),
        network=("mlp", "mlp", "linear"),
        layers=(1, 2, 3),
        layer_norm=(True, False),
        hidden=(8, 16, 40),
    )
    config = msgspec.convert(options, ReppoConfig)
    spec = join(env, Reppo(config).needs(env))

    def batch(pair: Pair, odd: float) -> Chunks:
        found = rolled(spec, config, pair.torch.policy, int(random.integers(1_000)))
        return spoilt(found, odd, random)

    return Case(spec, config, learner(random, 1e-3), batch)  # faster, it would leave the bound far behind


def sac(seed: int) -> Case:
    random = np.random.default_rng(seed)
    env = ExperienceSpec(fields(random, goal=True), Continuous((-1.0, -2.0), (1.0, 3.0)), 16, int(random.integers(1, 4)))
    options = choose(
        random,
        gamma=(0.0, 0.9, 0.99),
        tau=(0.005, 0.5),
        temperature_rate=(3e-4, 1e-2),
        hindsight=(0, 2),
        clip_targets=(True, False),
        imitation=(0.0, 0.0, 0.5),
        reward_scale=(1.0, 0.1, 200.0),
        normalize_reward=(True, False),
        normalize_observation=(True, False),
        network=("mlp", "mlp", "linear"),
        hidden=(4, 16, 40),
        layers=(1, 2, 3),
        layer_norm=(False, True),
    )
    config = msgspec.convert(options, SacConfig)
    spec = join(env, Sac(config).needs(env))

    def batch(pair: Pair, odd: float) -> Transitions:
        found = make_batch(msgspec.structs.replace(spec, action=Categorical(1)), 32)
        extras = {}
        if spec.goals:
            goals = torch.randn(32, spec.goals, 2)
            extras = {HINDSIGHT_GOAL: goals, HINDSIGHT_REWARD: goals.sum(2)}
        return spoilt(found._replace(action=torch.randn(32, 2), extras=extras), odd, random)

    return Case(spec, config, learner(random), batch)


def rolled(spec: ExperienceSpec, config: Any, policy: Any, seed: int) -> Chunks:
    """A rollout of the policy."""
    acting = Acting(spec, config, policy)
    acting.assign(3, 3)
    chunks, _ = play(spec, lambda stacked: acting.act(stacked, "explore"), 3, 13, seed)
    policy.train()
    return to_chunks(to_arrays(spec, chunks, harsh=False), spec, CPU)


CASES: dict[str, Callable[[int], Case]] = {"dqn": dqn, "pqn": pqn, "ppo": ppo, "reppo": reppo, "sac": sac}
every_kind = pytest.mark.parametrize("kind", CASES)


def paired(case: Case, seed: int, patch: pytest.MonkeyPatch) -> Pair:
    torch.manual_seed(seed)
    return Pair(case.spec, case.config, case.learner, patch, case.max_policy_lag)


@every_kind
@pytest.mark.parametrize("first", FIRST)
def test_a_step_is_that_of_torch(kind: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A third of the networks get rewards that are not finite, and skip or ignore what torch does."""
    found = []
    for seed in range(first, first + TOGETHER):
        case = CASES[kind](seed)
        pair = paired(case, seed, monkeypatch)
        before, _ = pair.weights()
        for _ in range(2):
            pair.update(case.batch(pair, 0.05 if seed % 3 == 0 else 0.0))
        found.append(pair.apart(before))
    # Where a gradient cancels to nearly nothing, Adam divides its rounding errors by as little.
    assert sorted(found)[-2] < APART and max(found) < 100 * APART


@every_kind
@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.slow] if seed >= 1_002 else []) for seed in range(1_000, 1_005)]
)
def test_fifty_updates_are_those_of_torch(kind: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case = CASES[kind](seed)
    pair = paired(case, seed, monkeypatch)
    before, _ = pair.weights()
    for _ in range(STEPS):
        pair.update(case.batch(pair, 0.0))
    assert pair.apart(before) < APART, case.config


@every_kind
@pytest.mark.parametrize("seed", [1_000, 1_001])
def test_a_run_that_changes_engines_five_times_is_that_of_torch_alone(
    kind: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = CASES[kind](seed)
    alone, changing = (paired(case, seed, monkeypatch) for _ in range(2))
    before = weights_of(alone.torch)
    for number in range(30):
        turn, last = number // 5, number % 5 == 4
        batch = case.batch(alone, 0.0)
        changing.seed(number)
        alone.torch.update(batch)
        changing.seed(number)
        changing.torch.update(batch) if turn % 2 == 0 else changing.arrays.update(in_arrays(batch))
        if last:
            changing.hand_over(to_arrays=turn % 2 == 0)
    assert distance(weights_of(alone.torch), weights_of(changing.arrays), before) < APART
    assert distance(weights_of(alone.torch), weights_of(changing.torch), before) < APART
