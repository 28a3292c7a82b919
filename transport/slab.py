"""Batch slots in memory that two processes of one host share.

The reader (the learner) makes the slab and leases slots; the writer (replay) opens it by the name in the learner's greeting. On
Linux the memory is an anonymous file (memfd), on Windows a section of the page file, so nothing remains when the two processes
end, however they end.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import secrets
import stat
import sys
import tempfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

ALIGNMENT = 64
MEMORY_NAME = "headrace-slab"
LINKED_TO = f"/memfd:{MEMORY_NAME} (deleted)"  # the link target of such a descriptor under /proc

Array = tuple[str, tuple[int, ...], str]  # name, shape, numpy dtype string


class SlabError(OSError):
    """Shared memory is not available; the message says why."""


@dataclass(frozen=True)
class Layout:
    """Arrays one after the other in a slot, each aligned to a cache line."""

    arrays: tuple[Array, ...]

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The start of each array; the last entry is the end."""
        offsets = [0]
        for _, shape, dtype in self.arrays:
            size = math.prod(shape) * np.dtype(dtype).itemsize
            offsets.append(-(-(offsets[-1] + size) // ALIGNMENT) * ALIGNMENT)
        return tuple(offsets)

    @property
    def slot_bytes(self) -> int:
        return self.offsets[-1]

    def view(self, buffer: memoryview | np.ndarray | mmap.mmap, slot: int = 0) -> dict[str, np.ndarray]:
        """The arrays of a slot, without copying."""
        # Not np.ndarray(buffer=…): it keeps no reference to the buffer, so the memory could be unmapped while arrays exist.
        whole = np.frombuffer(buffer, np.uint8)[slot * self.slot_bytes :]
        return {
            name: whole[offset : offset + math.prod(shape) * np.dtype(dtype).itemsize].view(dtype).reshape(shape)
            for (name, shape, dtype), offset in zip(self.arrays, self.offsets, strict=False)
        }


class Slab:
    """`slots` slots of one layout. `name` opens it in another process of this host. Made by `create` or `open`."""

    def __init__(self, layout: Layout, slots: int, memory: mmap.mmap, name: str, descriptor: int | None) -> None:
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
        return memoryview(self._memory)[slot * self._slot_bytes : (slot + 1) * self._slot_bytes]

    @staticmethod
    def create(layout: Layout, slots: int) -> Slab:
        """Allocates the memory. Raises SlabError."""
        size = max(layout.slot_bytes * slots, 1)
        try:
            if sys.platform == "win32":
                name = f"{MEMORY_NAME}-{size}-{secrets.token_hex(16)}"
                return Slab(layout, slots, mmap.mmap(-1, size, tagname=name), name, None)
            if _linux():
                descriptor = os.memfd_create(MEMORY_NAME, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
                name = f"/proc/{os.getpid()}/fd/{descriptor}"
            else:
                descriptor, name = tempfile.mkstemp(prefix=f"{MEMORY_NAME}-")
            try:
                os.ftruncate(descriptor, size)
                _seal(descriptor)
                return Slab(layout, slots, mmap.mmap(descriptor, size), name, descriptor)
            except BaseException:
                os.close(descriptor)
                if not _linux():
                    Path(name).unlink()
                raise
        except OSError as error:
            raise SlabError(f"cannot share {size:,} bytes of memory: {error.strerror}") from error

    @staticmethod
    def open(layout: Layout, slots: int, name: str) -> Slab:
        """Maps another process's slab. Raises SlabError if it does not exist, has another size or is not a slab.

        The name comes from a peer and this process writes to the memory. So it opens only what `create` can have made: no other
        file, no device, no pipe, nothing of another user and, on Linux, no memory that its owner can shrink.
        """
        size = max(layout.slot_bytes * slots, 1)
        if not _may_be_slab(name):
            raise SlabError(f"{name!r} is not the name of a slab")
        try:
            if sys.platform == "win32":
                return Slab(layout, slots, _open_section(name, size), name, None)
            _check_is_slab(os.stat(name, follow_symlinks=_linux()), name, size)  # first, because opening a device has effects
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(name, flags if _linux() else flags | os.O_NOFOLLOW)
            try:
                _check_is_slab(os.fstat(descriptor), name, size)
                _check_sealed(descriptor, name)
                memory = mmap.mmap(descriptor, size)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            raise SlabError(f"cannot open slab {name}: {error}") from error
        return Slab(layout, slots, memory, name, None)

    def close(self) -> None:
        """Releases the memory as soon as no array refers to it."""
        self.slots = []
        try:
            self._memory.close()
        except BufferError:
            pass  # an array still refers to it; the memory is unmapped with the last array
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            if not _linux():
                Path(self.name).unlink(missing_ok=True)


def _linux() -> bool:
    return sys.platform.startswith("linux")


def _may_be_slab(name: str) -> bool:
    """True for a name that `create` can have made."""
    if sys.platform == "win32":
        return re.fullmatch(f"{MEMORY_NAME}-[0-9]{{1,19}}-[0-9a-f]{{32}}", name) is not None
    if _linux():
        try:
            return re.fullmatch(r"/proc/[0-9]{1,10}/fd/[0-9]{1,10}", name) is not None and os.readlink(name) == LINKED_TO
        except OSError:
            return False
    path = Path(name)
    return path.parent == Path(tempfile.gettempdir()) and path.name.startswith(f"{MEMORY_NAME}-")


def _open_section(name: str, size: int) -> mmap.mmap:
    """Maps memory that another process has made: without it Windows would make new memory of that name. It never shrinks."""
    if name.split("-")[2] != str(size):  # the system tells the size in pages
        raise SlabError(f"slab {name} has another size than {size:,} bytes")
    import _winapi

    section = _winapi.OpenFileMapping(_winapi.FILE_MAP_WRITE, False, name)  # type: ignore[attr-defined]
    try:
        return mmap.mmap(-1, size, tagname=name)  # type: ignore[call-arg]
    finally:
        _winapi.CloseHandle(section)  # type: ignore[attr-defined]


def _check_is_slab(found: os.stat_result, name: str, size: int) -> None:
    if not stat.S_ISREG(found.st_mode) or (hasattr(os, "geteuid") and found.st_uid != os.geteuid()):
        raise SlabError(f"{name} is not a slab of this user")
    if found.st_size != size:
        raise SlabError(f"slab {name} has {found.st_size:,} bytes, not {size:,}")


def _seal(descriptor: int) -> None:
    """Fixes the size for ever: the system kills a process that writes to memory behind the end of a file."""
    if _linux():
        import fcntl

        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _check_sealed(descriptor: int, name: str) -> None:
    if _linux():
        import fcntl

        if not fcntl.fcntl(descriptor, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK:
            raise SlabError(f"slab {name} is not sealed: its owner could shrink it while it is written to")
