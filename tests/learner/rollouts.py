"""Rollouts as replay would give them: streams of a toy environment, cut into chunks by the actors' own chunker and stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from actors.agent import Stack
from actors.chunker import Chunker
from learner.algorithms.base import ActionBatch
from learner.feed.batches import to_chunks
from learner.updates.base import Chunks
from tests.learner.acting import Acting
from tests.learner.examples import CPU
from transport.experience import Chunk, Columns, ExperienceSpec

Act = Callable[[Columns], ActionBatch]  # {name: [K, stack, *shape]} -> what is done


def observe(spec: ExperienceSpec, count: int, random: np.random.Generator) -> Columns:
    """Random observations [count, *shape] as they rest."""
    return {
        field.name: random.integers(256, size=(count, *field.shape), dtype=np.uint8)
        if field.dtype == "|u1"
        else random.normal(1.0, 2.0, (count, *field.shape)).astype(np.float32)
        for field in spec.fields
    }


def play(spec: ExperienceSpec, act: Act, streams: int, steps: int, seed: int) -> tuple[list[Chunk], list[Columns]]:
    """Chunks of random observations and rewards, and the stacks that were acted on at each step. Episodes end by chance, half of
    them truncated; streams end amid a chunk."""
    random = np.random.default_rng(seed)
    chunker, stack = Chunker(spec, streams, 1e9), Stack(spec, streams)
    chunks: list[Chunk] = []
    seen: list[Columns] = []
    observation = observe(spec, streams, random)
    stack.reset(observation)
    for _ in range(steps):
        acted = act(stack.stacked)
        seen.append(stack.stacked)
        ended = random.random(streams) < 0.15
        terminated = ended & (random.random(streams) < 0.5)
        reward = random.normal(size=streams).astype(np.float32)
        last, following = observe(spec, streams, random), observe(spec, streams, random)
        done = (reward, terminated, ended & ~terminated)
        chunks += chunker.step(observation, acted.action, *done, last, 3, acted.columns)
        observation = {name: np.where(_like(ended, following[name]), following[name], last[name]) for name in last}
        stack.push(observation, ended)
    return chunks + list(chunker.drain(observation, 3)), seen


def _like(flag: np.ndarray, values: np.ndarray) -> np.ndarray:
    return flag.reshape(-1, *[1] * (values.ndim - 1))


def to_arrays(spec: ExperienceSpec, chunks: list[Chunk], harsh: bool = True) -> dict[str, np.ndarray]:
    """Chunks as replay lays them out for the learner; past a short chunk's last row lies garbage, or 0 as replay has it."""
    rows = spec.rows(spec.chunk_length)
    arrays: dict[str, np.ndarray] = {}
    for column in spec.columns:
        dtype = np.dtype(column.dtype)
        garbage = np.nan if dtype.kind == "f" else np.iinfo(dtype).max if dtype.itemsize == 1 else -7
        values = np.full((len(chunks), *column.chunk_shape(rows)), garbage if harsh else 0, dtype)
        for place, chunk in enumerate(chunks):
            values[place if column.once else (place, slice(spec.rows(chunk.length)))] = chunk.columns[column.name]
        name = f"observation/{column.name}" if column in spec.fields else column.name
        arrays[name] = values
    arrays["length"] = np.array([chunk.length for chunk in chunks], np.int64)
    arrays["probability"] = np.ones(len(chunks))
    return arrays


def rolled(update: Any, streams: int = 3, steps: int = 37) -> tuple[Chunks, list[Chunk], list[Columns]]:
    """A rollout of the update's own policy; its chunks, and the stacks that it acted on."""
    policy = Acting(update.spec, update.config, update.policy)
    policy.assign(3, streams)
    chunks, seen = play(update.spec, lambda stacked: policy.act(stacked, "explore"), streams, steps, seed=2)
    update.policy.train()
    return to_chunks(to_arrays(update.spec, chunks), update.spec, CPU), chunks, seen
