"""`checkpoints/manifest.json`: what each file in the folder must be, so that damage shows whatever it is that was damaged.

A file's entry is taken out before the file is replaced and put in when its successor is on disk. So a crash in between leaves a
file that the manifest does not know, never one that it describes wrongly; such a file is judged by the checksum inside it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from transport.file_lock import try_lock
from transport.run_dir import replacing

MANIFEST = "manifest.json"
LOCK = ".manifest.lock"
MOST_BYTES = 1 << 20
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 2.0, 0.01  # the evaluator writes there as well

Number = Annotated[int, Meta(ge=0, le=2**62)]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """What one file must be. `epoch`: none where an evaluator wrote it."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Number
    policy_version: Number
    epoch: Number | None = None


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole document: an entry for each file by its name."""

    files: Annotated[dict[Annotated[str, Meta(max_length=100)], Entry], Meta(max_length=1_000)]


class DamagedManifest(ValueError):
    """A manifest that says nothing: the text says why in one line."""


def read_manifest(folder: Path) -> dict[str, Entry] | None:
    """The entries by file name; None where there is no manifest. Raises DamagedManifest."""
    try:
        with open(folder / MANIFEST, "rb") as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedManifest(f"{MANIFEST} cannot be read ({error.strerror})") from error
    if len(text) > MOST_BYTES:
        raise DamagedManifest(f"{MANIFEST} is damaged (more than {MOST_BYTES:,} bytes)")
    try:
        return msgspec.json.decode(text, type=Manifest).files
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:  # ValidationError included
        raise DamagedManifest(f"{MANIFEST} is damaged ({str(error).splitlines()[0]})") from error


def contradiction(path: Path, entry: Entry) -> str:
    """In which way a file is not the one that was entered; empty when it is. Raises OSError."""
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{size:,} bytes where {MANIFEST} says {entry.bytes:,}"
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == entry.sha256 else f"its sha256 is not the one in {MANIFEST}"


def change(folder: Path, enter: Mapping[str, Entry], remove: Iterable[str] = ()) -> None:
    """Enters files, and takes others out: whole and on disk when it returns. A damaged manifest is begun anew. Raises OSError."""
    with _alone(folder):
        try:
            before = read_manifest(folder) or {}
        except DamagedManifest:
            before = {}
        after = {name: entry for name, entry in before.items() if name not in set(remove)} | dict(enter)
        if after != before or enter:
            with replacing(folder / MANIFEST) as file:
                file.write(msgspec.json.format(msgspec.json.encode(Manifest(dict(sorted(after.items()))))))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keeps other processes out; the kernel lets them in again however this one ends. Raises OSError when it takes too long."""
    with open(folder / LOCK, "ab") as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(file):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            time.sleep(LOCK_PAUSE_SECONDS)
        yield
