"""Columns that tests declare as algorithms do."""

from __future__ import annotations

from replay.table.layout import PRIORITY
from transport.experience import Column


def scalar(name: str) -> Column:
    """A float per row; that of an initial priority as an algorithm declares it."""
    if name == PRIORITY:
        return Column(name, (), "<f4", rests=False, check="any", default=-1.0)
    return Column(name, (), "<f4", default=None)


def scalars(*names: str) -> tuple[Column, ...]:
    return tuple(map(scalar, names))
