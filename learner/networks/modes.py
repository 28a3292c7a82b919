"""Context managers around a forward pass: evaluation mode and autocast."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

# torch raises for other types; older ones for mps, too. Asked once here, because torch.compile cannot trace the call.
AUTOCAST_TYPES = frozenset(filter(torch.amp.is_autocast_available, ("cpu", "cuda", "xpu", "mps", "privateuseone")))


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Within the block batch normalisation uses its running statistics and does not update them."""
    training = module.training
    if training:
        module.eval()
    try:
        yield
    finally:
        if training:
            module.train()


def autocasts(device_type: str) -> bool:
    """True if autocast is on for this type of device."""
    return device_type in AUTOCAST_TYPES and torch.is_autocast_enabled(device_type)


def exact(device_type: str) -> AbstractContextManager[object]:
    """Turns autocast off within the block."""
    return torch.autocast(device_type, enabled=False) if autocasts(device_type) else nullcontext()
