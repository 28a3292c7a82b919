"""The threads of numpy's matrix products.

Products of small matrices take longer by several threads, and on a busy machine many times as long: they wait for each other.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

FOLDERS = ("../numpy.libs", ".dylibs")  # of the libraries that numpy brings along, as seen from its own folder
PREFIXES, SUFFIXES = ("scipy_openblas", "openblas"), ("64_", "")  # of OpenBLAS's functions in different builds


def limit_threads(count: int) -> None:
    """Sets their number for this process where numpy brings OpenBLAS along. Elsewhere variables such as OMP_NUM_THREADS decide
    when numpy is imported; the supervisor sets these for its processes."""
    for function in functions("set_num_threads"):
        function(ctypes.c_int(count))


def functions(name: str) -> Iterator[Any]:
    """OpenBLAS's function of that name, or nothing."""
    folder = Path(np.__file__).parent
    for path in (path for each in FOLDERS for path in (folder / each).glob("*openblas*")):
        with suppress(OSError):
            library = ctypes.CDLL(str(path.resolve()))  # it is loaded already
            names = (f"{prefix}_{name}{suffix}" for prefix in PREFIXES for suffix in SUFFIXES)
            yield from (getattr(library, each) for each in names if hasattr(library, each))
