"""The counting environment's chunks without an actor's process, and writers that send them as fast as they may."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from actors.chunker import Chunker
from replay.client.writer import ExperienceWriter
from replay.config import ReplayConfig
from tests.flow.counting_env import ACTIONS, CountingEnv
from transport.experience import Categorical, Chunk, Columns, ExperienceSpec, observed


def counting_spec(chunk_length: int = 16, side: int = 0, n_step: int = 3) -> ExperienceSpec:
    """What actors of the counting environment record: images of `side` pixels, not compressed, or vectors."""
    field = observed("observation", (side, side), "|u1", 1 / 255) if side else observed("observation", (8,), "<f4")
    return ExperienceSpec((field,), Categorical(ACTIONS), chunk_length, 1, n_step)


def counting_replay(**settings: Any) -> ReplayConfig:
    """A table that nobody ever waits for."""
    usual: dict[str, Any] = {"min_size": 1, "capacity": 100_000, "samples_per_insert_low": 0.0, "samples_per_insert_high": 1e9}
    return ReplayConfig(**usual | settings)


class CountingStream:
    """One environment, stepped at random and cut into chunks: an endless iterator of them."""

    def __init__(self, spec: ExperienceSpec, identity: int) -> None:
        self._shape = spec.fields[0].shape
        self._env = CountingEnv(image=len(self._shape) > 1)
        self._chunker = Chunker(spec, 1, chunk_seconds=1e9)
        self._random = np.random.default_rng(identity)
        self._observation, _ = self._env.reset(seed=identity)
        self._ready: list[Chunk] = []
        self.steps = 0

    def __iter__(self) -> CountingStream:
        return self

    def __next__(self) -> Chunk:
        while not self._ready:
            self._step()
        return self._ready.pop(0)

    def chunks(self, count: int) -> list[Chunk]:
        """The next so many."""
        return list(islice(self, count))

    def _step(self) -> None:
        action = int(self._random.integers(ACTIONS))
        seen, reward, terminated, truncated, _ = self._env.step(action)
        row = self._seen(self._observation), np.array([action]), np.array([reward], np.float32)
        ends = np.array([terminated]), np.array([truncated])
        self._ready.extend(self._chunker.step(*row, *ends, self._seen(seen), 0, {}))
        self._observation = self._env.reset()[0] if terminated or truncated else seen
        self.steps += 1

    def _seen(self, observation: np.ndarray) -> Columns:
        return {"observation": np.resize(observation, self._shape)[None]}


class Feeder:
    """A writer that sends a stream's chunks whenever it has credit."""

    def __init__(self, address: str, name: str, incarnation: int, stream: CountingStream, spec: ExperienceSpec) -> None:
        self.writer = ExperienceWriter(address, name, incarnation, spec, 1)
        self._stream = stream

    def turn(self, feeding: bool = True) -> None:
        """Sends what it may, or nothing new; hears what there is."""
        while feeding and self.writer.has_credit:
            self.writer.insert(next(self._stream))
        self.writer.poll()
