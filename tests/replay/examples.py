"""Specs and streams that replay's tests share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from actors.chunker import Chunker
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.shards import WHOLE, Shard
from replay.table.layout import layout
from replay.table.ring import Ring
from transport.compression import crc32, pack_chunk
from transport.experience import Categorical, Chunk, Column, ExperienceSpec, Unit, observed
from transport.messages.replay import Insert


def make_spec(
    length: int = 8, stack: int = 3, n_step: int = 2, extras: tuple[Column, ...] = (), unit: Unit = "transitions"
) -> ExperienceSpec:
    """One float that counts the rows of a stream, so that a test can tell which row it has."""
    return ExperienceSpec((observed("position", (), "<f4"),), Categorical(4), length, stack, n_step, extras=extras, unit=unit)


def stream_chunks(spec: ExperienceSpec, ends: dict[int, str], steps: int) -> list[Chunk]:
    """The chunks of one stream of `steps` steps; `ends` says after which step an episode terminates or is truncated.

    position counts up by one per observation, a reset included. action is position mod 4, reward is 10 * position; what
    else the spec has is position + 1.
    """
    chunker = Chunker(spec, 1, chunk_seconds=1e9)
    chunks: list[Chunk] = []
    position = 0.0
    for step in range(steps):
        observation = np.array([position], np.float32)
        terminated, truncated = (np.array([ends.get(step) == how]) for how in ("terminated", "truncated"))
        final = np.array([position + 1], np.float32)
        position += 2 if truncated[0] else 1  # the final observation takes a number of its own
        chunks.extend(
            chunker.step(
                {"position": observation},
                observation.astype(np.int64) % 4,
                observation * 10,
                terminated,
                truncated,
                {"position": final},
                policy_version=step,
                columns={column.name: observation + 1 for column in spec.extras},
            )
        )
    chunks.extend(chunker.drain({"position": np.array([position], np.float32)}, steps))
    return chunks


class Logged:
    """A ring with its journal, from one start to the next."""

    def __init__(self, folder: Path, spec: ExperienceSpec, config: ReplayConfig, seed: int = 0, shard: Shard = WHOLE) -> None:
        self.spec = spec
        self.ring = Ring(spec, config, seed, shard=shard)
        self.journal = Journal(folder, self.ring, config, lambda: False)

    def append(self, chunk: Chunk, sequence: int, actor: str = "actor-0", incarnation: int = 7) -> None:
        """Logs and inserts a chunk, as the server does."""
        parts = pack_chunk(self.spec, chunk)
        self.journal.append(actor, incarnation, Insert(sequence, chunk.stream, chunk.length, crc32(parts)), parts)
        self.ring.insert(chunk)

    def values(self) -> dict[int, list[float]]:
        """By key of every chunk: what the selector holds of its items."""
        state = self.ring.state()
        values = state.selector.values.reshape(len(state.chunk_keys), -1)
        return {key: row for key, row in zip(state.chunk_keys.tolist(), values.tolist(), strict=True) if key >= 0}

    def stop(self, **counters: float) -> str:
        return self.journal.close(lambda: counters)

    def kill(self) -> None:
        """Ends without saving the state."""
        self.journal.log.close()
        self.journal._background.close()


def draw(ring: Ring, count: int) -> dict[str, np.ndarray]:
    """A batch in fresh memory, which is not zero."""
    arrangement = layout(ring.spec, count)
    out = arrangement.view(np.ones(arrangement.slot_bytes, np.uint8))
    ring.sample(out)
    return out


def every_item(table: Ring) -> dict[str, np.ndarray]:
    """All items that a table holds, as one batch, oldest first."""
    leaves = np.concatenate([np.zeros(0, np.int64)] + [np.arange(chunk.leaf, chunk.leaf + chunk.rows) for chunk in table._chunks])
    leaves = leaves[table._storage.drawable(leaves)]
    arrangement = layout(table.spec, len(leaves))
    out = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    table._storage.gather(leaves, out)
    out["probability"][:] = 1
    out["key"][:] = table._keys[leaves] - 1
    return out
