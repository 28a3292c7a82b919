"""The state of a network with memory as columns of experience, for algorithms that learn from whole chunks. No torch here."""

from __future__ import annotations

from transport.experience import Column

# Of the built-in memories, learner/networks/recurrent.py: the names of their parts, each [width].
STATES = {"lstm": ("memory/h", "memory/c"), "gru": ("memory/h",)}


def memory_columns(memory: str, width: int) -> tuple[Column, ...]:
    """A chunk has each part once: as it was before its first row, with the rows of the burn-in counted. The actor resets it at
    the beginning of each episode."""
    return tuple(Column(name, (width,), "<f4", once=True) for name in STATES[memory])
