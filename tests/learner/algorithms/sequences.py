"""Chunks of a recurrent policy as actors make them, and the outputs by which it acted: shared by PPO's and R2D2's tests."""

from __future__ import annotations

from typing import Any

import numpy as np

from actors.agent import Agent
from actors.chunker import Chunker
from learner.algorithms.base import ActionBatch, Mode, join
from learner.feed.batches import to_chunks
from learner.inference.module import infer_by
from learner.updates.base import Chunks
from tests.learner.examples import CPU, algorithm_of, vector
from tests.learner.rollouts import observe, to_arrays
from transport.experience import (
    ACTION_MASK,
    Categorical,
    Chunk,
    Column,
    Columns,
    Continuous,
    ExperienceSpec,
    MultiCategorical,
    observed,
)

STREAMS, STEPS, LENGTH = 3, 60, 8
MASK = observed(ACTION_MASK, (3,), "|u1")


def spec_of(
    config: Any,
    *fields: Column,
    action: Categorical | MultiCategorical | Continuous | None = None,
    stack: int = 1,
    length: int = LENGTH,
) -> ExperienceSpec:
    """A run's spec; by default of a vector and three actions."""
    env = ExperienceSpec(fields or (vector(size=3),), action or Categorical(3), length, stack)
    return join(env, algorithm_of(config).needs(env))


class RecordingActing:
    """Acts as the policy does, and records the network's outputs for each row of a chunk until the chunk is sent."""

    def __init__(self, policy: Any, inference: Any) -> None:
        self._policy, self._inference, self.state = policy, inference, policy.state
        self.outputs: list[np.ndarray] = []  # [rows, outputs] of each chunk

    def act(self, observation: Columns, state: Columns, mode: Mode) -> ActionBatch:
        chosen: ActionBatch = self._policy.act(observation, state, mode)
        return chosen._replace(columns=chosen.columns | {"outputs": self._inference(observation, state)[0]})

    def annotate(self, columns: Columns) -> Columns:
        self.outputs.extend(columns["outputs"])
        annotated: Columns = self._policy.annotate(columns)
        return annotated


def collect(
    update: Any, streams: int = STREAMS, steps: int = STEPS, ends: float = 0.15, truncates: float = 0.5, version: int = 1
) -> tuple[list[Chunk], list[np.ndarray]]:
    """The chunks of streams of random observations, whose episodes end by chance, and the network's outputs for their rows."""
    spec, inference = update.spec, infer_by(update.policy)
    policy = algorithm_of(update.config).acting(spec, inference)
    policy.assign(5, 0, streams, streams)
    acting, random = RecordingActing(policy, inference), np.random.default_rng(4)

    def see() -> Columns:
        seen = observe(spec, streams, random)
        return {name: rows % 3 > 0 if name == ACTION_MASK else rows for name, rows in seen.items()}

    agent, chunker = Agent(spec, acting, streams), Chunker(spec, streams, 1e9, annotate=acting.annotate)  # type: ignore[arg-type]
    chunks: list[Chunk] = []
    observation = see()
    agent.reset(observation)
    for _ in range(steps):
        action, columns = agent.act("explore")
        ended = random.random(streams) < ends
        truncated = ended & (random.random(streams) < truncates)
        last, following = see(), see()
        reward = random.standard_normal(streams).astype(np.float32)
        chunks += chunker.step(observation, action, reward, ended & ~truncated, truncated, last, version, columns)
        where = {name: ended.reshape(-1, *[1] * (rows.ndim - 1)) for name, rows in last.items()}
        observation = {name: np.where(where[name], following[name], last[name]) for name in last}
        agent.push(observation, ended)
    chunks += chunker.drain(observation, version)
    assert len(chunks) == len(acting.outputs)
    return chunks, acting.outputs


def batch_of(spec: ExperienceSpec, chunks: list[Chunk], harsh: bool = True) -> Chunks:
    """As the learner gets them; with `harsh`, what lies past a short chunk's last row is garbage."""
    resting = {column.name for column in spec.columns if not column.rests}
    arrays = to_arrays(spec, chunks, harsh)
    return to_chunks({name: values for name, values in arrays.items() if name not in resting}, spec, CPU)
