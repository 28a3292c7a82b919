"""The state file of a table: priorities, keys, counters. The chunks themselves are in the segment log."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta, Struct

from replay.log.files import open_regular
from replay.log.segments import MOST_KEYS
from replay.table.base import SelectorState
from replay.table.ring import RingState
from transport.files.writing import replacing
from transport.metrics import Record, finite

STATE_FORMAT = 2
ARCHIVE_ERRORS = (zipfile.BadZipFile, RuntimeError)  # the latter: nested too deep, encrypted, or an unknown compression


class DamagedState(ValueError):
    """A state file that cannot be used; the text says why in one line."""


class UnknownFormat(DamagedState):
    """A state file of another version of headrace."""


class StateNumbers(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of a state file besides its arrays."""

    next_chunk: Annotated[int, Meta(ge=0, lt=MOST_KEYS)]
    inserted_items: Annotated[int, Meta(ge=0, le=2**62)]
    sampled_items: Annotated[int, Meta(ge=0, le=2**62)]
    selector: dict[str, Any]  # SelectorState.numbers
    counters: Record
    format: int


def write_state(path: Path, state: RingState) -> None:
    """Replaces the file atomically, also in a power cut. Raises OSError."""
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
    """Reads a state file, which has checksums; None if there is no file. Raises DamagedState."""
    try:
        with open_regular(path) as file:
            _check_stored(file)
            with np.load(file, allow_pickle=False) as arrays:
                document = json.loads(arrays["numbers"].tobytes())
                _check_format(path, document)
                numbers = msgspec.convert(document, StateNumbers)
                chunk_keys, values = arrays["chunk_keys"], arrays["values"]
        if chunk_keys.dtype != np.int64 or values.dtype != np.float64 or (chunk_keys.ndim, values.ndim) != (1, 1):
            raise ValueError("arrays of another type or shape")
        if not len(chunk_keys):
            raise ValueError("no slot for a chunk")
        width, rest = divmod(len(values), len(chunk_keys))
        if rest or not 1 <= width <= leaves_per_chunk:
            raise ValueError("arrays of another type or shape")
        if finite(numbers.counters) != numbers.counters:
            raise ValueError("a counter that is not finite")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("a priority that is negative or not finite")
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
        raise UnknownFormat(f"{path.name} has format {found!r:.40}, this version of headrace reads format {STATE_FORMAT}")


def _check_stored(file: BinaryIO) -> None:
    """Raises ValueError for compressed entries: replay writes none, and decompressing them could fill the memory."""
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("a compressed entry")
    file.seek(0)
