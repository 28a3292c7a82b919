"""The arrays of a batch: which there are, of which shapes, for each unit of experience. All follow from the spec's columns."""

from __future__ import annotations

from transport.experience import Column, ExperienceSpec
from transport.slab import Array, Layout

PRIORITY = "initial_priority"  # an algorithm's column that says how much there may be to learn from a new item; below 0: unknown


def layout(spec: ExperienceSpec, size: int) -> Layout:
    """The arrays of a batch of `size` transitions, or whole chunks where these are the spec's unit, as they lie in a slab slot.

    Those of the observation's fields are called "observation/NAME", of other columns NAME. `key` [B] names the items, or counts
    chunks; `probability` [B] is that with which each was drawn.
    """
    return Layout(_transitions(spec, size) if spec.unit == "transitions" else _chunks(spec, size))


def leaves_per_chunk(spec: ExperienceSpec) -> int:
    """Items of a chunk that can be drawn by themselves."""
    return spec.chunk_length if spec.unit == "transitions" else 1


def array_name(spec: ExperienceSpec, column: Column) -> str:
    """What a column is called in a batch."""
    return f"observation/{column.name}" if column in spec.fields else column.name


def window_rows(spec: ExperienceSpec) -> int:
    """W: rows around a transition, its own stack and the n rows after it."""
    return spec.stack + spec.n_step


def _transitions(spec: ExperienceSpec, size: int) -> tuple[Array, ...]:
    """Windows [B, W, *shape], steps [B, n, *shape] and rows [B, *shape] of columns as they rest.

    observation_index and next_index [B, stack] say which rows of a window make up the stack of observation_t and of
    observation_{t+m}, oldest first. m = steps [B]: n_step, or fewer to the boundary; entries of `reward` from m on mean nothing.
    terminated [B]: the episode terminated within the m steps.
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
    """Every resting column as it rests: [B, spec.rows(L), *shape], or [B, *shape] where a chunk has it once.

    The first spec.history rows come before the first item; `length` [B] items follow, of which those with `valid` 0 hold an
    episode's last observation; then the n_step rows after them, to bootstrap from. Whatever lies behind, in a chunk shorter than
    L, is zero.
    """
    rows = spec.rows(spec.chunk_length)
    return (
        *((array_name(spec, column), (size, *column.chunk_shape(rows)), column.dtype) for column in spec.resting),
        ("length", (size,), "<i8"),
        ("probability", (size,), "<f8"),
        ("key", (size,), "<i8"),
    )
