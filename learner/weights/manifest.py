"""`checkpoints/manifest.json`: size and sha256 of each checkpoint file, by which damage is detected.

A file's entry is removed before the file is replaced, and added when the new file is on disk. After a crash in between the
manifest lacks the file, and never describes it wrongly; such a file is checked by the checksum inside it.
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

from replay.log.files import open_regular
from transport.files.documents import Damaged, decode
from transport.files.file_lock import try_lock
from transport.files.writing import open_to_append, replacing

MANIFEST = "manifest.json"
LOCK = ".manifest.lock"
MOST_BYTES = 1 << 20
LAST_VERSION = 2**30  # rows have 31 bits for a version, and a run needs years for that
LOCK_SECONDS, LOCK_PAUSE_SECONDS = 2.0, 0.01  # the evaluator changes the manifest, too

Number = Annotated[int, Meta(ge=0, le=2**62)]


class Entry(Struct, frozen=True, forbid_unknown_fields=True):
    """One file. `epoch` is None for the files of an evaluator."""

    sha256: Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]
    bytes: Number
    policy_version: Number
    epoch: Number | None = None


class Manifest(Struct, frozen=True, forbid_unknown_fields=True):
    """The document: an entry by file name."""

    files: Annotated[dict[Annotated[str, Meta(max_length=100)], Entry], Meta(max_length=1_000)]


def version_in(text: bytes) -> int | None:
    """The version in `checkpoints/announced`; None where it cannot be one."""
    return int(text) if text.strip().isdigit() and int(text) <= LAST_VERSION else None


class DamagedManifest(ValueError):
    """A manifest that cannot be read; the message says why in one line."""


def read_manifest(folder: Path) -> dict[str, Entry] | None:
    """The entries by file name; None where there is no manifest. Raises DamagedManifest."""
    try:
        with open_regular(folder / MANIFEST) as file:
            text = file.read(MOST_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise DamagedManifest(f"{MANIFEST} cannot be read ({error.strerror or error})") from error
    if len(text) > MOST_BYTES:
        raise DamagedManifest(f"{MANIFEST} is damaged (more than {MOST_BYTES:,} bytes)")
    try:
        return decode(text, Manifest).files
    except Damaged as error:
        raise DamagedManifest(f"{MANIFEST} is damaged ({error})") from error


def contradiction(path: Path, entry: Entry) -> str:
    """How a file differs from its entry, in one line; empty where it does not. Raises OSError."""
    if not path.is_file():
        return "it is not a file"
    size = path.stat().st_size
    if size != entry.bytes:
        return f"{size:,} bytes where {MANIFEST} says {entry.bytes:,}"
    with open(path, "rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return "" if found == entry.sha256 else f"its sha256 is not the one in {MANIFEST}"


def change(folder: Path, enter: Mapping[str, Entry], remove: Iterable[str] = ()) -> None:
    """Adds entries and removes others; the change is on disk on return. A damaged manifest is replaced. Raises OSError."""
    with locked(folder):
        try:
            before = read_manifest(folder) or {}
        except DamagedManifest:
            before = {}
        after = {name: entry for name, entry in before.items() if name not in set(remove)} | dict(enter)
        if after != before or enter:
            with replacing(folder / MANIFEST) as file:
                file.write(msgspec.json.format(msgspec.json.encode(Manifest(dict(sorted(after.items()))))))


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Holds the manifest's file lock, which the kernel releases when this process dies. Raises OSError after LOCK_SECONDS."""
    with open_to_append(folder / LOCK) as file:
        deadline = time.monotonic() + LOCK_SECONDS
        while not try_lock(file):
            if time.monotonic() >= deadline:
                raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK))
            time.sleep(LOCK_PAUSE_SECONDS)
        yield
