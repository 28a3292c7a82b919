"""How much experience a table holds: known before anything is started."""

from __future__ import annotations

from replay.config import ReplayConfig
from replay.table.layout import layout, leaves_per_chunk
from transport.experience import ExperienceSpec, column_bytes

PROCESS_BYTES = 120_000_000  # interpreter, libraries, buffers of sockets, copies of priorities on their way to the disk
TREE_BYTES_PER_ITEM = 40  # a sum-tree of float64 has fewer than four nodes per leaf, and indices come on top


def slot_bytes(spec: ExperienceSpec) -> int:
    """Bytes that a chunk takes, with what it takes to draw its items."""
    return (
        column_bytes(spec.resting, spec.rows(spec.chunk_length))
        + spec.chunk_length
        + TREE_BYTES_PER_ITEM * leaves_per_chunk(spec)
    )


def overhead_bytes(spec: ExperienceSpec, config: ReplayConfig, leased: int) -> int:
    """What replay needs beside its ring: itself, chunks that wait, and the learner's slots for `leased` items, or chunks."""
    if spec.unit == "rollouts":  # what waits for a batch may take more than the receive budget
        return PROCESS_BYTES + max(config.receive_bytes, leased * spec.chunk_bytes) + layout(spec, leased).slot_bytes
    return PROCESS_BYTES + config.receive_bytes + layout(spec, leased).slot_bytes


def slots(spec: ExperienceSpec, config: ReplayConfig, leased: int = 0) -> int:
    """Chunks that can be held, one slot being kept vacant; 0 of rollouts. Raises ValueError, with one line, if too few."""
    length, size = spec.chunk_length, slot_bytes(spec)
    overhead = overhead_bytes(spec, config, leased)
    if spec.unit == "rollouts":
        if overhead > config.budget_bytes:
            raise ValueError(
                f"replay.budget_bytes {config.budget_bytes:,} leaves no room for {overhead:,} bytes of chunks that wait, "
                "rollouts and the process: raise it, or lower replay.receive_bytes"
            )
        return 0
    found = min(max(config.capacity // length, 1), (config.budget_bytes - overhead) // size - 1)
    if found < 1:
        raise ValueError(
            f"replay.budget_bytes {config.budget_bytes:,} leaves no room for two chunks of {size:,} bytes beside the "
            f"{overhead:,} for chunks that wait, batches and the process: raise it, or lower replay.receive_bytes"
        )
    if found * length < config.min_size:
        raise ValueError(
            f"replay holds {found * length:,} items of {spec.row_bytes:,} bytes at most but replay.min_size is "
            f"{config.min_size:,}: raise replay.capacity or replay.budget_bytes, or lower replay.min_size"
        )
    return found
