"""Which run a mirror belongs to, and when it was copied: `mirror.json` in the mirror, and in the run's own folder.

A run's folder and its mirror have the same id. Only the mirror's file has the time of a copy. So a run's folder whose file has
one is a mirror that was copied back.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
from msgspec import Struct

from transport.files.documents import Damaged, decode
from transport.files.regular import open_file
from transport.run_dir import RunDir, replacing

NOTE = "mirror.json"
MOST_BYTES = 4096


class MirrorNote(Struct, frozen=True):
    """`copied`: the time of the newest copy, in seconds since 1970; `steps`: those that the run had done by then; `complete`: the
    run had stopped, and all of it was copied. They are 0 and false in the run's own folder, and in a mirror during its first
    pass."""

    id: str
    copied: float = 0.0
    steps: int = 0
    complete: bool = False

    @property
    def when(self) -> str:
        """In words."""
        if not self.copied:
            return "that is not complete"
        return f"of step {self.steps:,}, made on {time.strftime('%Y-%m-%d at %H:%M:%S', time.localtime(self.copied))}"


def mirror_of(run: RunDir, folder: str) -> Path:
    """Where the mirror of a run is, or will be. `folder`: deploy.mirror."""
    return Path(os.path.expanduser(folder)) / run.name  # Path's own raises where there is no such user


def read_note(folder: Path) -> MirrorNote | None:
    """None where there is no note that can be read."""
    try:
        with open_file(folder / NOTE) as file:
            return decode(file.read(MOST_BYTES), MirrorNote)
    except (OSError, Damaged):
        return None


def write_note(folder: Path, note: MirrorNote) -> None:
    """Raises OSError."""
    with replacing(folder / NOTE) as file:
        file.write(msgspec.json.encode(note))
