"""Batch slots in memory that two processes of one host share.

The reader (the learner) makes the slab and lends slots; the writer (replay) opens it by the name that it is told. On Linux
the memory has no name in any file system, so that nothing is left behind however the two end.
"""

from __future__ import annotations

import math
import mmap
import os
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

ALIGNMENT = 64


class SlabError(OSError):
    """Shared memory that cannot be had: the message says why."""


@dataclass(frozen=True)
class Layout:
    """Arrays laid one after the other in a slot: (name, shape, numpy dtype string) each, aligned to a cache line."""

    arrays: tuple[tuple[str, tuple[int, ...], str], ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """Where each array begins; one more entry for the end."""
        offsets = [0]
        for _, shape, dtype in self.arrays:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            offsets.append(-(-(offsets[-1] + size) // ALIGNMENT) * ALIGNMENT)
        return tuple(offsets)

    @property
    def slot_bytes(self) -> int:
        """Bytes of one slot."""
        return self.offsets[-1]

    def view(self, buffer: memoryview | np.ndarray | mmap.mmap, slot: int = 0) -> dict[str, np.ndarray]:
        """The arrays of a slot, without copying."""
        # Not np.ndarray(buffer=…), which forgets that it holds the buffer: memory could be unmapped under its arrays.
        whole = np.frombuffer(buffer, np.uint8)[slot * self.slot_bytes :]
        return {
            name: whole[offset : offset + math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
            for (name, shape, dtype), offset in zip(self.arrays, self.offsets, strict=False)
        }


class Slab:
    """`slots` slots of one layout. `name` opens it in another process of this host."""

    def __init__(self, layout: Layout, slots: int, memory: mmap.mmap, name: str, descriptor: int | None) -> None:
        """Use `create` or `open`."""
        self.name = name
        self._memory = memory
        self._descriptor = descriptor
        self._slot_bytes = layout.slot_bytes
        self.slots = [layout.view(memory, slot) for slot in range(slots)]

    @property
    def memory(self) -> np.ndarray:
        """The bytes of all slots, one after the other."""
        return np.frombuffer(self._memory, np.uint8)[: self._slot_bytes * len(self.slots)]

    def raw(self, slot: int) -> memoryview:
        """The bytes of a slot."""
        return memoryview(self._memory)[slot * self._slot_bytes : (slot + 1) * self._slot_bytes]

    @staticmethod
    def create(layout: Layout, slots: int) -> Slab:
        """Takes the memory. Raises SlabError when it cannot be had."""
        size = max(layout.slot_bytes * slots, 1)
        try:
            if sys.platform.startswith("linux"):
                descriptor = os.memfd_create("headrace-slab", os.MFD_CLOEXEC)
                name = f"/proc/{os.getpid()}/fd/{descriptor}"
            else:
                descriptor, name = tempfile.mkstemp(prefix="headrace-slab-")
            os.ftruncate(descriptor, size)
            memory = mmap.mmap(descriptor, size)
        except OSError as error:
            raise SlabError(f"cannot share {size:,} bytes of memory: {error.strerror}") from error
        return Slab(layout, slots, memory, name, descriptor)

    @staticmethod
    def open(layout: Layout, slots: int, name: str) -> Slab:
        """Maps another process's slab. Raises SlabError when it is not there or of another size."""
        size = max(layout.slot_bytes * slots, 1)
        try:
            with open(name, "r+b") as file:
                if os.fstat(file.fileno()).st_size != size:
                    raise SlabError(f"slab {name} is not of {size:,} bytes")
                memory = mmap.mmap(file.fileno(), size)
        except OSError as error:
            raise SlabError(f"cannot open slab {name}: {error}") from error
        return Slab(layout, slots, memory, name, None)

    def close(self) -> None:
        """Gives the memory back as soon as no array of it is in use."""
        self.slots = []
        try:
            self._memory.close()
        except BufferError:
            pass  # a caller still holds an array; the mapping goes with it
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            if not sys.platform.startswith("linux"):
                Path(self.name).unlink(missing_ok=True)
