"""Chunks for the writers of `headrace bench replay`: a recording, played round and round."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from actors.chunker import Chunker
from benchmarks.common.recording import Recording
from replay.table.layout import PRIORITY
from transport.experience import Chunk, Columns, ExperienceSpec

NO_SECONDS = 3600.0  # a chunk leaves the chunker only when it is full


def save_circle(folder: Path, recording: Recording, tail: int) -> None:
    """Writes the recording's columns with their first `tail` rows once more at the end: any chunk is then one slice."""
    folder.mkdir()
    for name, values in recording.columns().items():
        np.save(folder / f"{name}.npy", np.concatenate([values, values[:tail]]))


def load_circle(folder: Path) -> tuple[Recording, Columns]:
    """The recording, and the longer columns. All processes share the memory."""
    columns = {path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in sorted(folder.glob("*.npy"))}
    rows = int(columns["reward"].argmax()) + 1
    recording = Recording(**{name: values[:rows] for name, values in columns.items() if name != "reward"})
    priority = np.random.default_rng(0).random(len(columns["reward"]), np.float32)
    return recording, columns | {PRIORITY: priority, "policy_version": np.zeros(len(priority), np.int32)}


def first_rows(recording: Recording, number: int, streams: int) -> np.ndarray:
    """Where the streams [K] of a writer begin: at the start of an episode each."""
    return recording.starts[np.arange(number * streams, (number + 1) * streams) % len(recording.starts)]


def chunks_by_slices(spec: ExperienceSpec, recording: Recording, columns: Columns, begin: np.ndarray) -> Iterator[Chunk]:
    """Chunks for ever, as slices of the recording: what packing and sending cost, and nothing before it."""
    rows = spec.rows(spec.chunk_length)
    while True:
        for stream, row in enumerate(begin):
            first = (int(row) - spec.history) % len(recording)
            yield Chunk(stream, spec.chunk_length, {name: values[first : first + rows] for name, values in columns.items()})
        begin = begin + spec.chunk_length


def chunks_by_steps(spec: ExperienceSpec, recording: Recording, columns: Columns, begin: np.ndarray) -> Iterator[Chunk]:
    """The same chunks put together from single steps by the actors' chunker, K streams in lockstep."""
    chunker = Chunker(spec, len(begin), NO_SECONDS)
    following = np.arange(1, len(recording) + 1) % len(recording)
    following = np.where(recording.valid[following] != 0, following, (following + 1) % len(recording))
    observations, row = columns["observation"], begin
    terminated, truncated = (columns[name].astype(bool) for name in ("terminated", "truncated"))
    while True:
        observation = {"observation": observations[row]}
        final = {"observation": observations[row + 1]} if truncated[row].any() else observation
        outcome = (columns["action"][row], columns["reward"][row], terminated[row], truncated[row])
        yield from chunker.step(observation, *outcome, final, 0, {PRIORITY: columns[PRIORITY][row]})
        row = following[row]
