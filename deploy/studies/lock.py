"""One process at a time works on a study."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from transport.files.file_lock import try_lock, unlock

NAME = ".lock"  # in the study's folder; it holds the pid


@contextmanager
def locked(folder: Path, refusal: Callable[[str], Exception]) -> Iterator[None]:
    """Locks the folder until the end of the block, or of this process. Where another process has the lock, raises what `refusal`
    makes of its pid. Raises OSError, too."""
    with open(folder / NAME, "a+b") as file:
        if not try_lock(file):
            file.seek(0)
            raise refusal(file.read().decode("ascii", "replace") or "unknown")
        file.truncate(0)
        file.write(str(os.getpid()).encode())
        file.flush()
        try:
            yield
        finally:
            unlock(file)
