"""The arrays of a batch, and the memory that replay needs. All follow from the columns of the experience spec."""

from __future__ import annotations

from replay.config import ReplayConfig
from transport.experience import Column, ExperienceSpec, column_bytes
from transport.slab import Array, Layout

PRIORITY = "initial_priority"  # the column in which an algorithm sends priorities of new items; below 0: unknown
PROCESS_BYTES = 120_000_000  # interpreter, libraries, socket buffers, copies of priorities that are being saved
TREE_BYTES_PER_ITEM = 56  # a sum tree has fewer than four float64 nodes per leaf; the rest is for index arrays
SHORT_CHUNKS_BYTES = 500_000_000  # the most memory for the rows around items that short chunks have more of


def layout(spec: ExperienceSpec, size: int) -> Layout:
    """The arrays of a batch of `size` transitions, or of whole chunks if these are the spec's unit, as they lie in a slab slot.

    The arrays of observation fields are called "observation/NAME", those of other columns NAME. `key` [B] identifies the items
    (rollouts: counts the chunks); `probability` [B] is the probability with which each was drawn.
    """
    return Layout(_transitions(spec, size) if spec.unit == "transitions" else _chunks(spec, size))


def leaves_per_chunk(spec: ExperienceSpec) -> int:
    """The number of items of a chunk that can be drawn separately."""
    return spec.chunk_length if spec.unit == "transitions" else 1


def array_name(spec: ExperienceSpec, column: Column) -> str:
    """The name of a column's array in a batch."""
    return f"observation/{column.name}" if column in spec.fields else column.name


def window_rows(spec: ExperienceSpec) -> int:
    """W: the rows around a transition, those of its frame stack and the n_step rows after it."""
    return spec.stack + spec.n_step


def _transitions(spec: ExperienceSpec, size: int) -> tuple[Array, ...]:
    """Stored values: windows [B, W, *shape], steps [B, n_step, *shape] and rows [B, *shape].

    observation_index and next_index [B, stack] are the rows of a window that make up the frame stack of observation_t and of
    observation_{t+m}, oldest first. m = steps [B] is n_step, or fewer up to an episode boundary; entries of `reward` from m on
    are undefined. terminated [B]: the episode terminated within the m steps.
    """
    axes = {"window": (size, window_rows(spec)), "steps": (size, spec.n_step), "row": (size,)}
    return (
        *(
            (array_name(spec, column), (*axes[column.taken], *column.shape), column.dtype)
            for column in spec.resting
            if column.taken != "none"
        ),
        ("observation_index", (size, spec.stack), "<i8"),
        ("next_index", (size, spec.stack), "<i8"),
        ("steps", (size,), "<i8"),
        ("terminated", (size,), "|b1"),
        ("probability", (size,), "<f8"),
        ("key", (size,), "<i8"),
    )


def _chunks(spec: ExperienceSpec, size: int) -> tuple[Array, ...]:
    """Stored values of every column that replay keeps: [B, spec.rows(L), *shape], or [B, *shape] for `once` columns.

    The first spec.history rows come before the first item. Then follow `length` [B] items, of which those with `valid` 0 hold an
    episode's last observation, then n_step rows for bootstrapping. In a chunk shorter than L the remaining rows are zero.
    """
    rows = spec.rows(spec.chunk_length)
    return (
        *((array_name(spec, column), (size, *column.chunk_shape(rows)), column.dtype) for column in spec.resting),
        ("length", (size,), "<i8"),
        ("probability", (size,), "<f8"),
        ("key", (size,), "<i8"),
    )


def slot_bytes(spec: ExperienceSpec) -> int:
    """Bytes that a chunk needs in the ring, including the sum tree's part for its items."""
    return (
        column_bytes(spec.resting, spec.rows(spec.chunk_length))
        + spec.chunk_length
        + TREE_BYTES_PER_ITEM * leaves_per_chunk(spec)
    )


def overhead_bytes(spec: ExperienceSpec, config: ReplayConfig, leased: int) -> int:
    """Bytes that replay needs besides its ring: the process, waiting chunks, and learners' slots of `leased` items or chunks."""
    if spec.unit == "rollouts":  # the chunks that wait for a batch may need more than the receive budget
        return PROCESS_BYTES + max(config.receive_bytes, leased * spec.chunk_bytes) + layout(spec, leased).slot_bytes
    return PROCESS_BYTES + config.receive_bytes + layout(spec, leased).slot_bytes


def ring_slots(spec: ExperienceSpec, config: ReplayConfig, leased: int = 0) -> int:
    """The number of slots: one vacant, and where memory allows enough for chunks of a single item to fill the capacity: each
    takes rows(1) rows, and two slots may be filled in part. Unused slots take no memory. Raises ValueError."""
    chunks, size = capacity_chunks(spec, config, leased), slot_bytes(spec)
    if not packs(spec):
        return chunks + 1
    spare = (config.budget_bytes - overhead_bytes(spec, config, leased)) // size - chunks - 1
    return chunks + 1 + min(chunks * (spec.rows(1) - 1) + 2, spare, SHORT_CHUNKS_BYTES // size)


def packs(spec: ExperienceSpec) -> bool:
    """True if a slot can take several short chunks: where whole chunks are drawn, or a slot has a value once, it cannot."""
    return spec.unit == "transitions" and not any(column.once for column in spec.resting)


def capacity_chunks(spec: ExperienceSpec, config: ReplayConfig, leased: int = 0) -> int:
    """The number of chunks that fit, besides the vacant slot; 0 for rollouts. Raises ValueError, in one line, if too few fit."""
    length, size = spec.chunk_length, slot_bytes(spec)
    overhead = overhead_bytes(spec, config, leased)
    if spec.unit == "rollouts":
        if overhead > config.budget_bytes:
            raise ValueError(
                f"replay.budget_bytes {config.budget_bytes:,} is too small for {overhead:,} bytes of waiting chunks, "
                "rollouts and the process: raise it, or lower replay.receive_bytes"
            )
        return 0
    chunks = min(max(config.capacity // length, 1), (config.budget_bytes - overhead) // size - 1)
    if chunks < 1:
        raise ValueError(
            f"replay.budget_bytes {config.budget_bytes:,} is too small for two chunks of {size:,} bytes besides "
            f"{overhead:,} for waiting chunks, batches and the process: raise it, or lower replay.receive_bytes"
        )
    if chunks * length < config.min_size:
        raise ValueError(
            f"replay can keep {chunks * length:,} items of {spec.row_bytes:,} bytes but replay.min_size is "
            f"{config.min_size:,}: raise replay.capacity or replay.budget_bytes, or lower replay.min_size"
        )
    return chunks
