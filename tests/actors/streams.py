"""Random streams through a chunker, beside the rows that should come of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from actors.chunker import Chunker
from tests.transport.columns import scalars
from transport.experience import Categorical, Chunk, Column, Continuous, ExperienceSpec, observed

Rows = list[dict[str, Any]]
NEVER_SECONDS = 1e9


def make_spec(
    length: int,
    stack: int,
    n_step: int,
    action: Categorical | Continuous | None = None,
    extras: tuple[Column, ...] = scalars("log_prob"),
) -> ExperienceSpec:
    fields = (observed("image", (2, 3), "|u1"), observed("place", (), "<f4"))
    return ExperienceSpec(fields, action or Categorical(5), length, stack, n_step, extras=extras)


class Clock:
    """Time as the test says."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Streams:
    """Feeds a chunker with random steps and keeps, per stream, the rows that it should make of them."""

    def __init__(self, spec: ExperienceSpec, count: int, seed: int = 0, seconds: float = NEVER_SECONDS) -> None:
        self.spec, self.count = spec, count
        self.random = np.random.default_rng(seed)
        self.clock = Clock()
        self.chunker = Chunker(spec, count, seconds, self.clock)
        self.expected: list[Rows] = [[] for _ in range(count)]
        self.chunks: list[list[Chunk]] = [[] for _ in range(count)]
        self.age = [0] * count
        self.version = 0
        self.handed_out: list[Chunk] = []
        self.observation = self.observe()

    def observe(self) -> dict[str, np.ndarray]:
        return {
            "image": self.random.integers(256, size=(self.count, 2, 3)).astype(np.uint8),
            "place": self.random.random(self.count, np.float32),
        }

    def take(self, chunks: Iterable[Chunk]) -> list[Chunk]:
        """The chunks of one call; a chunk that is handed out must never change again, so copies are kept."""
        new = list(chunks)
        for chunk in new:
            copy = {name: column.copy() for name, column in chunk.columns.items()}
            self.chunks[chunk.stream].append(Chunk(chunk.stream, chunk.length, copy, chunk.starts))
        self.handed_out += new
        return new

    def last_row(self, k: int, observation: dict[str, np.ndarray]) -> dict[str, Any]:
        action = next(column for column in self.spec.columns if column.name == "action")
        nothing = {"action": np.zeros(action.shape), "reward": 0, "terminated": 0, "truncated": 0, "valid": 0}
        nothing |= {column.name: column.default or 0 for column in self.spec.extras}
        seen = {name: values[k] for name, values in observation.items()}
        return {**seen, **nothing, "episode_step": self.age[k], "policy_version": self.version}

    def step(self, terminated: np.ndarray | None = None, truncated: np.ndarray | None = None) -> list[Chunk]:
        if terminated is None or truncated is None:
            terminated = self.random.random(self.count) < 0.15
            truncated = ~terminated & (self.random.random(self.count) < 0.15)
        action: np.ndarray
        if isinstance(self.spec.action, Categorical):
            action = self.random.integers(self.spec.action.n, size=self.count)
        else:
            assert isinstance(self.spec.action, Continuous)
            action = self.random.random((self.count, len(self.spec.action.low)), np.float32)
        reward = self.random.random(self.count, np.float32)
        extras = {column.name: self.random.standard_normal(self.count).astype(np.float32) for column in self.spec.extras}
        final, following = self.observe(), self.observe()
        for k in range(self.count):
            self.expected[k].append(
                {name: values[k] for name, values in self.observation.items()}
                | {"action": action[k], "reward": reward[k], "terminated": terminated[k], "truncated": truncated[k]}
                | {name: values[k] for name, values in extras.items()}
                | {"valid": 1, "episode_step": self.age[k], "policy_version": self.version}
            )
            self.age[k] += 1
            if truncated[k]:
                self.expected[k].append(self.last_row(k, final))
            if terminated[k] or truncated[k]:
                self.age[k] = 0
        chunks = self.take(
            self.chunker.step(self.observation, action, reward, terminated, truncated, final, self.version, extras)
        )
        self.observation = following
        self.version += 1
        return chunks

    def drain(self) -> list[Chunk]:
        for k in range(self.count):
            self.expected[k].extend(self.last_row(k, self.observation) for _ in range(self.spec.n_step))
        return self.take(self.chunker.drain(self.observation, self.version))

    def check(self) -> list[int]:
        """Compares every row of every chunk; returns how many items of each stream have come out."""
        items = []
        for rows, chunks in zip(self.expected, self.chunks, strict=True):
            first = 0  # row of the next chunk's first item
            for chunk in chunks:
                assert 1 <= chunk.length <= self.spec.chunk_length
                for name, column in chunk.columns.items():
                    field = next(field for field in self.spec.columns if field.name == name)
                    assert column.dtype == np.dtype(field.dtype)
                    assert column.shape == (self.spec.rows(chunk.length), *field.shape)
                    for place, value in enumerate(column):
                        row = first - self.spec.history + place
                        if row >= 0:  # before a stream's first row there is nothing to compare
                            expected = np.asarray(rows[row][name], field.dtype)
                            assert np.array_equal(value, expected), (name, row)
                first += chunk.length
            items.append(first)
        left = [list(chunks) for chunks in self.chunks]
        for chunk in self.handed_out:
            again = left[chunk.stream].pop(0)
            for name, column in chunk.columns.items():
                assert np.array_equal(column, again.columns[name]), name
        return items
