"""Shared batch slots."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np
import pytest

from transport.slab import Layout, Slab, SlabError

LAYOUT = Layout((("frames", (3, 5), "|u1"), ("key", (3,), "<i8")))


def test_arrays_are_aligned_and_do_not_overlap() -> None:
    slab = Slab.create(LAYOUT, 2)
    for slot, arrays in enumerate(slab.slots):
        arrays["frames"][:] = slot + 1
        arrays["key"][:] = 100 * slot
        assert all(array.ctypes.data % 64 == 0 for array in arrays.values())
    assert [int(arrays["frames"].sum()) for arrays in slab.slots] == [15, 30]
    assert [arrays["key"].tolist() for arrays in slab.slots] == [[0] * 3, [100] * 3]
    slab.close()


def test_what_another_process_writes_is_seen_here() -> None:
    slab = Slab.create(LAYOUT, 2)
    script = (
        "import sys; from transport.slab import Layout, Slab;"
        f"slab = Slab.open({LAYOUT!r}, 2, sys.argv[1]); slab.slots[1]['key'][:] = [7, 8, 9]"
    )
    subprocess.run([sys.executable, "-c", script, slab.name], check=True, timeout=60)
    assert slab.slots[1]["key"].tolist() == [7, 8, 9]
    assert bytes(slab.raw(1)[64:72]) == np.int64(7).tobytes()
    slab.close()


def test_an_array_outlives_its_slab() -> None:
    slab = Slab.create(LAYOUT, 1)
    array = slab.slots[0]["key"]
    array[:] = 5
    view = array[1:]
    del array
    slab.close()
    assert view.tolist() == [5, 5]


@pytest.mark.skipif(sys.platform == "win32", reason="no descriptors")
def test_a_slab_for_which_there_is_no_memory_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*arguments: object) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr("transport.slab.mmap.mmap", fails)
    made: list[int] = []
    make = "os.memfd_create" if sys.platform == "linux" else "tempfile.mkstemp"
    original = os.memfd_create if sys.platform == "linux" else tempfile.mkstemp

    def memory(*arguments: Any, **options: Any) -> Any:
        found = original(*arguments, **options)
        made.append(found if isinstance(found, int) else found[0])
        return found

    monkeypatch.setattr(make, memory)
    with pytest.raises(SlabError, match="no memory"):
        Slab.create(LAYOUT, 1)
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(made[0])


def test_a_slab_that_is_not_there_or_of_another_size_is_refused() -> None:
    with pytest.raises(SlabError, match="nowhere"):
        Slab.open(LAYOUT, 1, "/nowhere/slab")
    slab = Slab.create(LAYOUT, 1)
    with pytest.raises(SlabError):
        Slab.open(LAYOUT, 2, slab.name)
    slab.close()
