"""What a table knows of the chunks it holds, on disk: priorities, keys, counters. The rows are in the segment log."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta, Struct

from replay.log.segments import MOST_KEYS
from replay.table.base import SelectorState
from replay.table.ring import RingState
from transport.metrics import Record
from transport.run_dir import replacing

STATE_FORMAT = 2
ARCHIVE_ERRORS = (zipfile.BadZipFile, RuntimeError)  # the latter: nested too deep, encrypted, or another way of packing


class DamagedState(ValueError):
    """A state file that cannot be used: the text says why in one line."""


class UnknownFormat(DamagedState):
    """Written by another version."""


class Numbers(Struct, frozen=True, forbid_unknown_fields=True):
    """What a state file holds beside its arrays."""

    next_chunk: Annotated[int, Meta(ge=0, lt=MOST_KEYS)]
    inserted_items: Annotated[int, Meta(ge=0, le=2**62)]
    sampled_items: Annotated[int, Meta(ge=0, le=2**62)]
    selector: dict[str, Any]  # its own
    counters: Record
    format: int


def write_state(path: Path, state: RingState) -> None:
    """Writes so that `path` is at all times either the old file or the new one, whole, a power cut included. Raises OSError."""
    selector = state.selector
    numbers = {
        "next_chunk": state.next_chunk,
        "inserted_items": state.inserted_items,
        "sampled_items": state.sampled_items,
        "selector": selector.numbers,
        "counters": state.counters,
        "format": STATE_FORMAT,
    }
    with replacing(path) as file:
        text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
        np.savez(file, numbers=text, chunk_keys=state.chunk_keys, values=selector.values)


def read_state(path: Path, leaves_per_chunk: int) -> RingState | None:
    """What write_state() wrote, checked by the archive's own checksums; None where there is no file. Raises DamagedState."""
    try:
        with open(path, "rb") as file:
            _check_stored(file)
            with np.load(file, allow_pickle=False) as arrays:
                document = json.loads(arrays["numbers"].tobytes())
                _check_format(path, document)
                numbers = msgspec.convert(document, Numbers)
                chunk_keys, values = arrays["chunk_keys"], arrays["values"]
        if chunk_keys.dtype != np.int64 or values.dtype != np.float64 or values.shape != (leaves_per_chunk * len(chunk_keys),):
            raise ValueError("arrays of another kind")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("a priority that is no number")
        selector = SelectorState(values, numbers.selector)
        return RingState(
            numbers.next_chunk, chunk_keys, numbers.inserted_items, numbers.sampled_items, selector, numbers.counters
        )
    except FileNotFoundError:
        return None
    except UnknownFormat:
        raise
    except (OSError, EOFError, LookupError, ArithmeticError, TypeError, ValueError, MemoryError, *ARCHIVE_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DamagedState(f"{path.name} is damaged ({reason})") from error


def _check_format(path: Path, document: Any) -> None:
    found = document.get("format", 1) if isinstance(document, dict) else None
    if found != STATE_FORMAT:
        raise UnknownFormat(f"{path.name} has format {found!r:.40}, this version of headrace reads {STATE_FORMAT}")


def _check_stored(file: BinaryIO) -> None:
    """Raises ValueError for an archive that would become larger than it is."""
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed, which ours never are")
    file.seek(0)
