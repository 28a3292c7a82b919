"""What a table knows of the chunks it holds, on disk: priorities, keys, counters. The rows are in the segment log."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import msgspec
import numpy as np
from msgspec import Meta, Struct

from replay.log.segments import MOST_KEYS
from replay.table.selectors import SelectorState
from transport.metrics import Record
from transport.run_dir import replacing

ARCHIVE_ERRORS = (zipfile.BadZipFile, RuntimeError)  # the latter: nested too deep, encrypted, or another way of packing


class DamagedState(ValueError):
    """A state file that cannot be used: the text says why in one line."""


@dataclass(frozen=True)
class TableState:
    """A moment of a table: N slots of L leaves each."""

    next_chunk: int
    chunk_keys: np.ndarray  # [N] int64, -1 where a slot is empty
    inserted_items: int
    sampled_items: int
    selector: SelectorState  # values [N * L]
    counters: Record = field(default_factory=dict)  # the server's


class Numbers(Struct, frozen=True, forbid_unknown_fields=True):
    """What a state file holds beside its arrays."""

    next_chunk: Annotated[int, Meta(ge=0, lt=MOST_KEYS)]
    inserted_items: Annotated[int, Meta(ge=0, le=2**62)]
    sampled_items: Annotated[int, Meta(ge=0, le=2**62)]
    exponent: Annotated[float, Meta(ge=0, le=1)]
    highest: Annotated[float, Meta(ge=0)]
    random: dict[str, Any]
    counters: Record


def write_state(path: Path, state: TableState) -> None:
    """Writes so that `path` is at all times either the old file or the new one, whole, a power cut included. Raises OSError."""
    selector = state.selector
    numbers = {
        "next_chunk": state.next_chunk,
        "inserted_items": state.inserted_items,
        "sampled_items": state.sampled_items,
        "exponent": selector.exponent,
        "highest": selector.highest,
        "random": selector.random,
        "counters": state.counters,
    }
    with replacing(path) as file:
        text = np.frombuffer(json.dumps(numbers).encode(), np.uint8)
        np.savez(file, numbers=text, chunk_keys=state.chunk_keys, values=selector.values)


def read_state(path: Path, chunk_length: int) -> TableState | None:
    """What write_state() wrote, checked by the archive's own checksums; None where there is no file. Raises DamagedState."""
    try:
        with open(path, "rb") as file:
            _check_stored(file)
            with np.load(file, allow_pickle=False) as arrays:
                numbers = msgspec.convert(json.loads(arrays["numbers"].tobytes()), Numbers)
                chunk_keys, values = arrays["chunk_keys"], arrays["values"]
        if chunk_keys.dtype != np.int64 or values.dtype != np.float64 or values.shape != (chunk_length * len(chunk_keys),):
            raise ValueError("arrays of another kind")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("a priority that is no number")
        np.random.PCG64(0).state = numbers.random  # type: ignore[assignment]  # refuses what is no state of it
        selector = SelectorState(values=values, exponent=numbers.exponent, highest=numbers.highest, random=numbers.random)
        return TableState(
            numbers.next_chunk, chunk_keys, numbers.inserted_items, numbers.sampled_items, selector, numbers.counters
        )
    except FileNotFoundError:
        return None
    except (OSError, EOFError, LookupError, ArithmeticError, TypeError, ValueError, MemoryError, *ARCHIVE_ERRORS) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0][:200]
        raise DamagedState(f"{path.name} is damaged ({reason})") from error


def _check_stored(file: BinaryIO) -> None:
    """Raises ValueError for an archive that would become larger than it is."""
    with zipfile.ZipFile(file) as archive:
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
            raise ValueError("compressed, which ours never are")
    file.seek(0)
