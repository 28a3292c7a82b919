"""Transitions and rollouts in arrays against their twins in torch."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import numpy as np
import pytest
import torch

from learner.algorithms.arithmetic import rollouts as rollouts_in_torch
from learner.algorithms.arithmetic import transitions as transitions_in_torch
from learner.algorithms.base import join
from learner.algorithms.pqn.algorithm import Pqn
from learner.algorithms.pqn.config import PqnConfig
from learner.engine import rollouts, transitions
from learner.networks.known.draft import inputs_op
from learner.networks.stacks import stack_rows
from learner.parallel.base import ALONE
from learner.program.inputs import Inputs
from tests.learner.engine.arrays import in_arrays, same
from tests.learner.examples import CPU, image, make_batch, make_spec, make_update, vector
from tests.learner.rollouts import rolled
from transport.experience import ACTION_MASK, Categorical, Column, ExperienceSpec, observed

FIELDS = (vector(), observed("angle", (2, 3), "|u1", 0.02, -2.5), observed(ACTION_MASK, (3,), "|u1"))
every_stack = pytest.mark.parametrize("stack", [1, 3])


def rollout_spec(stack: int, *fields: Column) -> ExperienceSpec:
    env = ExperienceSpec(fields or FIELDS, Categorical(3, masked=not fields), 8, stack)
    return join(env, Pqn(PqnConfig()).needs(env))


@every_stack
@pytest.mark.parametrize("n_step", [1, 4])
def test_transitions_are_those_of_torch(stack: int, n_step: int) -> None:
    torch.manual_seed(0)
    spec = make_spec(vector(), image(shape=(6, 6)), stack=stack, n_step=n_step)
    batch = make_batch(spec, 9)
    width = stack + n_step
    index = torch.randint(width, (9, stack))  # repeated rows, as at an episode's start
    batch = batch._replace(observation_index=index)
    expected = transitions_in_torch.transition(batch, 0.9)
    found = transitions.transition(in_arrays(batch), 0.9)
    for name, rows in found.observation.items():
        same(rows[:9], expected.observation[name])
        same(rows[9:], expected.next_observation[name])
    for one, other in zip(found[1:], (expected.action, expected.return_, expected.discount), strict=True):
        same(one, other)
    for name, rows in transitions.newest(in_arrays(batch)).items():
        same(rows, batch.observation[name][torch.arange(9), index[:, -1]][:, None])


@every_stack
@pytest.mark.parametrize("clip", [False, True])
def test_rollouts_are_those_of_torch(stack: int, clip: bool) -> None:
    torch.manual_seed(1)
    options = {"hidden": 16, "gamma": 0.9, "network": "mlp", "clip_rewards": clip, "reward_scale": 0.5}
    update = make_update(rollout_spec(stack), msgspec.convert(options, PqnConfig))
    batch, _, _ = rolled(update)
    expected = rollouts_in_torch.Rollout(batch, update.spec, update.config)
    found = rollouts.Rollout(in_arrays(batch), update.spec, update.config)
    assert not expected.item.all() and expected.cut.any() and not expected.cut.all(), "the rollout has no such case"
    for name in ("index", "item", "discount", "cut", "places", "newest"):
        same(getattr(found, name), getattr(expected, name))
    same(found.reward[found.item], expected.reward[expected.item])
    same(found.of_items(found.index[:, :-1]), expected.of_items(expected.index[:, :-1]))
    module = update.policy.body.inputs
    stacks = stack_rows(expected.rows, expected.of_items(expected.index[:, :-1]))
    inputs = Inputs([], **inputs_op(module, ()).options)
    expected_inputs = torch.cat(list(module.read_vectors(stacks).values()), 1)
    same(found.read(inputs)[found.among_read], expected_inputs)
    for name, rows in found.seen().items():
        same(rows, stacks[name][:, -1:])
        same(found.newest_of_all(name)[found.among_read], stacks[name][:, -1:])


class Items(NamedTuple):
    number: np.ndarray
    row: np.ndarray


class Permutations(np.random.Generator):
    """Gives the permutations that torch drew."""

    def __init__(self, order: np.ndarray) -> None:
        super().__init__(np.random.PCG64(0))
        self._order = order

    def permutation(self, x: int) -> np.ndarray:  # type: ignore[override]
        assert x == len(self._order)
        return self._order


@pytest.mark.parametrize(("items", "minibatches"), [(111, 4), (3, 4), (8, 4), (1, 1)])
def test_minibatches_are_those_of_torch(items: int, minibatches: int) -> None:
    torch.manual_seed(0)
    parts = next(rollouts_in_torch.shuffled(items, [1], minibatches, ALONE, CPU))
    columns = Items(np.arange(items, dtype=np.int64), np.arange(2 * items, dtype=np.int64).reshape(items, 2))
    found = list(rollouts.shuffled(columns, minibatches, Permutations(torch.cat(parts).numpy())))
    assert len(found) == len(parts)
    for minibatch, part in zip(found, parts, strict=True):
        assert isinstance(minibatch, Items)
        same(minibatch.number, part)
        same(minibatch.row[:, 1], 2 * part + 1)


class Counting(rollouts.RolloutUpdate):
    """Its metric is the number of the step."""

    steps = 0

    def step(self, minibatch: Items) -> rollouts.Metrics:
        self.steps += 1
        return {"step": float(self.steps), "items": float(len(minibatch.number))}

    def is_enough(self, metrics: rollouts.Metrics) -> bool:
        return metrics["step"] >= self.config.enough


class Options(NamedTuple):
    n_epochs: int = 3
    minibatches: int = 4
    enough: float = np.inf


class Runtime:
    def __init__(self, stop: float = np.inf) -> None:
        self.random, self.stop = np.random.default_rng(0), stop

    def interrupted(self) -> bool:
        self.stop -= 1
        return self.stop < 1


@pytest.mark.parametrize(
    ("options", "stop", "steps", "ends"),
    [(Options(), np.inf, 12, True), (Options(enough=6), np.inf, 8, True), (Options(), 5, 5, False)],
)
def test_passes_end_when_they_are_done_or_enough_or_the_run_stops(options: Options, stop: float, steps: int, ends: bool) -> None:
    update = Counting(make_spec(vector()), Runtime(stop), options)
    mean, last = update.passes(Items(np.arange(10), np.zeros((10, 2))))
    assert update.steps == steps and mean["step"] == pytest.approx((1 + steps) / 2)
    assert (last is not None) == ends and (last is None or last["step"] == steps)
