"""What surrounds a forward pass: evaluation mode and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

# To ask torch about another is an error; mps came with later torches. Asked here, since compilers cannot follow the question.
AUTOCAST_TYPES = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "privateuseone")))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within, batch normalisation uses its running statistics and leaves them alone."""
    training = module.training
    if training:
        module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def autocasts(device_type: str) -> bool:
    """Whether autocast is on for a type of device."""
    return device_type in AUTOCAST_TYPES and torch.is_autocast_enabled(device_type)


def exact(device_type: str) -> AbstractContextManager[object]:
    """Within, autocast is off."""
    return torch.autocast(device_type, enabled=False) if autocasts(device_type) else nullcontext()
