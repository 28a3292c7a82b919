"""Columns for the recurrent state of a network with memory, for algorithms that learn from whole chunks. No torch here."""

from __future__ import annotations

from transport.experience import Column

# Names of the state's parts, each [width], of the built-in memories in learner/networks/recurrent.py.
STATES = {"lstm": ("memory/h", "memory/c"), "gru": ("memory/h",)}


def memory_columns(memory: str, width: int) -> tuple[Column, ...]:
    """One value per chunk: the state before the first row of the burn-in. The actor resets the state where an episode begins."""
    return tuple(Column(name, (width,), "<f4", once=True) for name in STATES[memory])
