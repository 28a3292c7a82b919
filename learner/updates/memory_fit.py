"""How many items fit into memory at once: foreseen before the first update, and less after an error says that it was too many."""

from __future__ import annotations

from collections.abc import Callable

import psutil
import torch
from torch import Tensor

from learner.devices.capabilities import backend, capabilities
from learner.updates.dense import KnownGradients

# The last three are oneDNN's, which does not say why: what cannot be multiplied at all is refused before it is asked.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
)
SPARE = 0.8  # of the memory that is free: the rest is for what nobody foresees
GRADIENTS = 2.0  # what is kept for the backward pass, and gradients of about the same size


def free_bytes(device: torch.device, limit_bytes: int) -> int:
    """Memory that the learner may still take on the device, at most the limit where one is set (0: none)."""
    if capabilities(device).memory_figures:
        free = int(backend(device).mem_get_info(device)[0])
    else:
        free = psutil.virtual_memory().available  # the device is the CPU, or shares its memory, or does not tell
    return min(free, limit_bytes) if limit_bytes else free


def limit_memory(device: torch.device, limit_bytes: int) -> None:
    """Lets the device's allocator fail beyond the limit, where it can be told to."""
    if capabilities(device).memory_cap:
        total = backend(device).get_device_properties(device).total_memory
        backend(device).set_per_process_memory_fraction(min(limit_bytes / total, 1.0), device)


def bytes_per_item(loss: Callable[[], object], parameters: list[torch.nn.Parameter], items: int) -> float:
    """What a backward pass over one of `items` items would keep, measured: `loss` is computed once, with gradients.

    Counted are the tensors that autograd saves, each piece of memory once, parameters left out. Where nobody sees a tensor's
    memory, those that share some are all counted.
    """
    storages = capabilities(parameters[0].device).storages

    def memory(tensor: Tensor) -> tuple[int, int]:
        """What tells it from others, and its size in bytes."""
        if not storages:
            return id(tensor), tensor.nbytes
        storage = tensor.untyped_storage()
        return storage.data_ptr(), storage.nbytes()

    known = {memory(parameter)[0] for parameter in parameters}
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        where, size = memory(tensor)
        if where not in known:
            saved[where] = size
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        kept = loss()  # held until all is counted: freed memory would be used, and counted, again
    if isinstance(kept, KnownGradients):
        return GRADIENTS * kept.kept_bytes / items
    return GRADIENTS * sum(saved.values()) / items


def fitting_parts(items: int, parts: int, per_item: float, free: int) -> int:
    """Into how many micro-batches to split: `parts`, doubled until one fits into the free memory or holds a single item."""
    while parts < items and -(-items // parts) * per_item > SPARE * free:
        parts = min(2 * parts, items)
    return parts


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error says that an allocation failed, in the words of one backend or another."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in NO_MEMORY)
