"""The same batches and modules for the engine as for torch."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor


def in_arrays(tree: Any) -> Any:
    """A tree of tensors in NamedTuples and dicts -> the same of arrays, which share no memory with the tensors."""
    if isinstance(tree, Tensor):
        return tree.numpy().copy()
    if isinstance(tree, dict):
        return {name: in_arrays(value) for name, value in tree.items()}
    return type(tree)(*(in_arrays(value) for value in tree))


def same(found: np.ndarray, expected: Tensor, rtol: float = 2e-5, atol: float = 2e-5) -> None:
    assert found.dtype == expected.numpy().dtype
    np.testing.assert_allclose(found, expected.numpy(), rtol=rtol, atol=atol)
