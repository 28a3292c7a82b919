"""`sums.json`: the checksums of a stopped run's files, but for those that have their own. A run that is up has no such file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from replay.log.files import ASIDE, is_regular, open_regular
from transport.files.documents import Damaged, read_document
from transport.files.writing import sync_folder, write_durably
from transport.run_dir import RunDir

SUMS = "sums.json"
OWN = (".segment", ".safetensors", ".partial", ".tmp")  # have checksums, or are left by processes that were killed
PASSING = ("compiled", "endpoints", "sockets", "tracking", "keys", "report.html")  # caches, addresses, what other commands write
GROWING = (".jsonl", ".log")  # may be added to after the run


class Sum(Struct, frozen=True):
    """The size of a file and the sum of its content."""

    bytes: int
    sha256: str


class Sums(Struct, frozen=True):
    """The file. `sha256`: of its `files`."""

    files: dict[str, Sum]
    sha256: str


def write_sums(run: RunDir) -> None:
    """Has the files outlast a power cut first, as their sums do. Raises OSError."""
    files = list(_files(run))
    for path in files:
        with open_regular(path, change=os.name != "posix") as file:  # elsewhere only a file that may be changed is synced
            os.fsync(file.fileno())
    for folder in {path.parent for path in files}:
        sync_folder(folder)
    found = {str(path.relative_to(run.path)): sum_of(path) for path in files}
    write_durably(run.path / SUMS, msgspec.json.encode(Sums(found, _digest(found))))


def forget_sums(run: RunDir) -> None:
    """The files of a run that starts change: after a power cut their old checksums must not come back. Raises OSError."""
    (run.path / SUMS).unlink(missing_ok=True)
    sync_folder(run.path)


def read_sums(run: RunDir) -> dict[str, Sum]:
    """By path in the run's folder; none where the run did not end in order. Raises Damaged, OSError."""
    path = run.path / SUMS
    if not path.exists():
        return {}
    found = read_document(path, Sums)
    if found.sha256 != _digest(found.files):
        raise Damaged(f"{path} is damaged (its own checksum does not match)")
    return found.files


def _digest(files: dict[str, Sum]) -> str:
    return hashlib.sha256(msgspec.json.encode(files)).hexdigest()


def difference(path: Path, known: Sum) -> str:
    """How a file differs from what it was when the run ended; empty where it does not."""
    if not is_regular(path):
        return "is lost"
    size = path.stat().st_size
    if size < known.bytes:
        return f"has {size:,} of its {known.bytes:,} bytes"
    if (size > known.bytes and path.suffix not in GROWING) or sum_of(path, known.bytes) != known:
        return "is not what it was when the run ended"
    return ""


def sum_of(path: Path, most: int | None = None) -> Sum:
    """The sum of the whole file, or of its first bytes. Raises OSError."""
    state, size = hashlib.sha256(), 0
    with open_regular(path) as file:
        while piece := file.read(1 << 20 if most is None else min(1 << 20, most - size)):
            state.update(piece)
            size += len(piece)
    return Sum(size, state.hexdigest())


def _files(run: RunDir) -> Iterator[Path]:
    for path in sorted(run.path.rglob("*")):
        parts = path.relative_to(run.path).parts
        left_out = any(part.startswith(".") for part in parts) or parts[0] in (*PASSING, SUMS) or ASIDE in path.name
        if not left_out and path.suffix not in OWN and is_regular(path):
            yield path
