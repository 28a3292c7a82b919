"""Between the cases and the product: the only file here that imports it, and the only one that a rearrangement changes.

Options of cases have the names that a user types; arrays have the names that the file of figures gives them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np
import torch

from actors.agent import Stack
from actors.chunker import Chunker
from actors.hindsight import GoalReward, Hindsight
from learner.algorithms.base import Algorithm, find_algorithm, join
from learner.config import LearnerConfig
from learner.feed.batches import to_chunks, to_transitions
from learner.inference.module import infer_by
from learner.updates.base import Outcome
from learner.updates.runtime import LearnerRuntime
from replay.config import ReplayConfig
from replay.table.inbox import Inbox, Writer
from replay.table.layout import PRIORITY, layout
from replay.table.ring import Ring
from replay.table.rollout_queue import RolloutQueue
from tests.golden.cases import Arrays, Case, World
from tests.golden.cases import weights as fixed_weights
from transport.compression import crc32, pack_chunk
from transport.experience import Categorical, Chunk, Column, Continuous, ExperienceSpec
from transport.messages.replay import Insert, SampleRequest
from transport.metrics import Metrics

CPU = torch.device("cpu")


def make_algorithm(case: Case) -> Algorithm:
    goals = {"hindsight": case.goals} if case.algorithm == "sac" else {}
    found = find_algorithm(case.algorithm)
    return found(found.Config(**case.options, **goals))


def make_spec(case: Case) -> ExperienceSpec:
    action = Categorical(case.actions) if isinstance(case.actions, int) else Continuous(*case.actions)
    fields = tuple(msgspec.convert(field._asdict() | {"taken": "window"}, Column) for field in case.fields)
    env = ExperienceSpec(fields, action, case.chunk_length, case.stack)
    return join(env, make_algorithm(case).needs(env))


# ---- actors


class Distance:
    """An environment as far as hindsight asks."""

    @property
    def unwrapped(self) -> Distance:
        return self

    def compute_reward(self, achieved: np.ndarray, desired: np.ndarray, info: dict[str, Any]) -> np.ndarray:
        return -np.abs(achieved - desired).sum(1)


Acted = tuple[np.ndarray, Arrays]  # the action, and what goes with it into the row


class Acting:
    """Acts by fixed weights, in the place `first` to `first + streams` of `total` environments."""

    def __init__(self, case: Case, seed: int, first: int, total: int, weights: Callable[[dict[str, Any]], Arrays]) -> None:
        algorithm = make_algorithm(case)
        network = algorithm.policy(make_spec(case))
        assign_weights({"policy": network}, weights)
        self.policy = algorithm.acting(make_spec(case), infer_by(network, case.precision))
        self.policy.assign(seed, first, case.streams, total)

    def act(self, stacked: Arrays, mode: Any) -> Acted:
        """What is done on [K, stack, *shape]."""
        chosen = self.policy.act(stacked, {}, mode)
        return chosen.action, chosen.columns


def play(case: Case, world: World, act: Callable[[Arrays], Acted], by_policy: bool) -> list[Chunk]:
    """The chunks of the streams of `world`. `by_policy`: what goes with an action is what the policy says, not the columns."""
    spec = make_spec(case)
    policy = Acting(case, 0, 0, 1, fixed_weights).policy if by_policy else None
    hindsight = Hindsight(spec, GoalReward(Distance().compute_reward), 5) if spec.goals else None

    def annotate(columns: Arrays) -> Arrays:
        columns = columns if hindsight is None else hindsight(columns)
        return columns if policy is None else policy.annotate(columns)

    chunker, stack = Chunker(spec, case.streams, 1e9, annotate=annotate, staggered=True), Stack(spec, case.streams)
    chunks: list[Chunk] = []
    observation = world.observe()
    stack.reset(observation)
    for version in range(case.steps):
        action, remembered = act(stack.stacked)
        step = world.step()
        done = (step.reward, step.terminated, step.truncated)
        chunks += chunker.step(observation, action, *done, step.final, version // 7, remembered)
        observation = step.observation
        stack.push(observation, step.terminated | step.truncated)
    return chunks + list(chunker.drain(observation, case.steps // 7))


def columns_of(case: Case, chunk: Chunk) -> Arrays:
    """A chunk's columns; an unknown priority is -1, and rows without action have log-probability 0."""
    columns = dict(chunk.columns)
    if PRIORITY in columns:
        columns["initial_priority"] = np.nan_to_num(columns.pop(PRIORITY), nan=-1.0)
    if "log_prob" in columns:
        columns["log_prob"] = np.where(columns["valid"] != 0, columns["log_prob"], np.float32(0))
    return columns


def extra_columns(case: Case, random: np.random.Generator) -> Arrays:
    """What an algorithm adds to a row, drawn instead of computed: [K] each."""
    values = np.abs(random.normal(size=case.streams)).astype(np.float32)
    if case.algorithm == "dqn":
        values[random.random(case.streams) < 0.3] = np.nan  # unknown
        return {PRIORITY: values}
    return {"log_prob": -values} if case.algorithm == "ppo" else {}


# ---- replay


class Replay:
    """A table of `capacity` items, prioritised."""

    def __init__(self, case: Case, capacity: int, seed: int) -> None:
        self._case, self._spec = case, make_spec(case)
        self._table = Ring(self._spec, ReplayConfig(capacity=capacity, min_size=1, budget_bytes=4_000_000_000), seed)

    def insert(self, chunk: Chunk) -> None:
        self._table.insert(chunk)

    def draw(self, items: int) -> Arrays:
        """A batch by the names of `batch_layout`."""
        arrangement = layout(self._spec, items)
        arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        self._table.sample(arrays)
        return arrays

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self._table.update_priorities(keys, priorities)


def draw_rollouts(case: Case, chunks: Iterable[Chunk], batches: int, items: int, max_policy_lag: int = 1_000) -> list[Arrays]:
    """Batches of `items` whole chunks, oldest first."""
    spec = make_spec(case)
    inbox = Inbox()
    queue = RolloutQueue(spec, ReplayConfig(max_policy_lag=max_policy_lag), inbox, Metrics(), items)
    writer = Writer("actor-0", 1, case.streams, b"peer", 0, 0)
    arrangement = layout(spec, items)
    for sequence, chunk in enumerate(chunks):
        parts = pack_chunk(spec, chunk)
        inbox.put(writer, Insert(sequence, chunk.stream, chunk.length, crc32(parts)), parts)
    drawn = []
    for generation in range(batches):
        arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        assert queue.draw(SampleRequest(0, generation), arrays) is not None, "too few chunks"
        drawn.append(arrays)
    return drawn


def rollout_figures(case: Case, batch: Arrays) -> Arrays:
    """A batch of rollouts by the names of the file of figures; rows without action have log-probability 0."""
    batch = {name: array for name, array in batch.items() if name != "probability"}  # 1 of each: it was not there before
    return batch | {"log_prob": np.where(batch["valid"] != 0, batch["log_prob"], np.float32(0))}


# ---- learner


def assign_weights(modules: dict[str, torch.nn.Module], weights: Callable[[dict[str, Any]], Arrays]) -> None:
    """Gives every parameter "part/name" its value."""
    parameters = {f"{part}/{name}": value for part, module in modules.items() for name, value in module.named_parameters()}
    values = weights({name: tuple(parameter.shape) for name, parameter in parameters.items()})
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(torch.from_numpy(values[name]))


class Learning:
    """What an algorithm learns with on the CPU in float32, built after torch.manual_seed(seed)."""

    def __init__(self, case: Case, seed: int) -> None:
        self._case, self._spec = case, make_spec(case)
        settings: dict[str, Any] = {"learning_rate": 1e-3, "batch_size": case.items, "precision": "float32"} | case.learner
        max_policy_lag = settings.pop("max_policy_lag", 1)
        torch.manual_seed(seed)
        runtime = LearnerRuntime(LearnerConfig(**settings), CPU, max_policy_lag=max_policy_lag)
        self._update: Any = make_algorithm(case).update(self._spec, runtime)

    def assign(self, weights: Callable[[dict[str, Any]], Arrays]) -> None:
        """Other weights."""
        assign_weights(self._update.modules, weights)

    def weights(self) -> Arrays:
        """All tensors by "part/name": running statistics and target networks included."""
        modules = self._update.modules.items()
        return {f"{part}/{name}": value.numpy() for part, module in modules for name, value in module.state_dict().items()}

    def learn(self, batch: Arrays) -> Arrays:
        """Learns from a batch; its priorities where there are any, and the loss."""
        if self._case.algorithm == "ppo":
            return {"loss": self._learn_from_rollouts(batch)}
        tensors = {name: torch.from_numpy(array) for name, array in batch.items()}
        metrics, priorities = self._update.update(to_transitions(tensors, self._spec))
        return {"loss": metrics["loss"].numpy().copy(), "priorities": priorities.numpy().copy()}

    def _learn_from_rollouts(self, batch: Arrays) -> np.ndarray:
        """The mean loss of all steps, and how many there were."""
        losses, step = [], self._update.optimiser.step

        def stepping(*arguments: Any) -> Outcome:
            outcome: Outcome = step(*arguments)
            losses.append(float(outcome.metrics["loss"]))
            return outcome

        self._update.optimiser.step = stepping
        self._update.update(to_chunks(batch, self._spec, CPU))
        self._update.optimiser.step = step
        return np.array([np.mean(losses), len(losses)], np.float32)
