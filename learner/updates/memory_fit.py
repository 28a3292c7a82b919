"""Fits micro-batches into memory: their size is estimated before the first update, and reduced after an out-of-memory error."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from learner.devices.capabilities import backend, capabilities
from transport.system import free_memory

# The last three are oneDNN's, which gives no reason; operations that it does not support fail earlier.
NO_MEMORY = (
    "out of memory",
    "can't allocate memory",
    "blas_status_alloc_failed",  # cuBLAS and hipBLAS
    "cudnn_status_alloc_failed",
    "miopenstatusallocfailed",
    "could not create a primitive",
    "could not create a memory object",
    "could not execute a primitive",
)
USABLE = 0.8  # of the free memory; the rest is a reserve
WITH_GRADIENTS = 2.0  # saved activations, and gradients of about the same size


def free_bytes(device: torch.device, limit_bytes: int) -> int:
    """Memory that the learner may still allocate on the device, at most `limit_bytes` (0: no limit)."""
    if capabilities(device).memory_figures:
        free = int(backend(device).mem_get_info(device)[0])
    else:
        free = free_memory()  # the device is the CPU, or shares its memory, or does not report its own
    return min(free, limit_bytes) if limit_bytes else free


def limit_memory(device: torch.device, limit_bytes: int) -> None:
    """Makes the device's allocator fail beyond the limit, where it supports that."""
    if capabilities(device).memory_cap:
        total = backend(device).get_device_properties(device).total_memory
        backend(device).set_per_process_memory_fraction(min(limit_bytes / total, 1.0), device)


def bytes_per_item(loss: Callable[[], object], parameters: list[torch.nn.Parameter], items: int) -> float:
    """Memory per item that a step takes for activations and gradients, measured by computing `loss` of `items` items once.

    Counts the tensors that autograd saves, except parameters, and each storage once. On devices whose storages have no address,
    tensors that share one are counted several times.
    """
    storages = capabilities(parameters[0].device).storages

    def memory(tensor: Tensor) -> tuple[int, int]:
        """(identity, bytes) of the tensor's storage."""
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
        value = loss()
    del value  # only now: freed memory would be reused, and counted twice
    return WITH_GRADIENTS * sum(saved.values()) / items


def fitting_parts(items: int, parts: int, per_item: float, free: int) -> int:
    """The number of micro-batches: `parts`, doubled until one of them fits into the free memory or holds a single item."""
    while parts < items and -(-items // parts) * per_item > USABLE * free:
        parts = min(2 * parts, items)
    return parts


def is_out_of_memory(error: RuntimeError) -> bool:
    """True for an allocation that has failed, by the error's type or by the text that a backend gives it."""
    text = str(error).lower()
    return isinstance(error, torch.OutOfMemoryError) or any(words in text for words in NO_MEMORY)
