"""Trees of tensors in NamedTuples and dicts: mapped, split along axis 0, compared by shape."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from torch import Tensor

TreeT = TypeVar("TreeT")


def leaves(tree: Any) -> Iterator[Tensor]:
    """Every tensor, in order."""
    if isinstance(tree, Tensor):
        yield tree
    elif isinstance(tree, dict):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple):
        for value in tree:
            yield from leaves(value)


def mapped(function: Callable[[Tensor], Tensor], tree: TreeT) -> TreeT:
    """A tree of the same form, with the function applied to each tensor."""
    if isinstance(tree, Tensor):
        return function(tree)  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {name: mapped(function, value) for name, value in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple):
        values = [mapped(function, value) for value in tree]
        return tuple(values) if type(tree) is tuple else type(tree)(*values)  # type: ignore[return-value]
    return tree


def part(tree: TreeT, start: int, stop: int) -> TreeT:
    """Items start … stop-1 of axis 0: views, no copies."""
    return mapped(lambda tensor: tensor[start:stop], tree)


def count(tree: Any) -> int:
    """The number of items: the length of axis 0."""
    return len(next(leaves(tree)))


def shapes(tree: Any) -> list[tuple[Any, ...]]:
    """Shapes and dtypes of all tensors: a graph or a compiled loss serves only trees of the same ones."""
    return [(tensor.shape, tensor.dtype) for tensor in leaves(tree)]
