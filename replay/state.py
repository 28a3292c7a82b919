"""What a table knows of the chunks it holds, on disk: priorities, keys, counters. The rows are in the segment log."""

from __future__ import annotations

import json
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from replay.selectors import SelectorState
from transport.metrics import Record
from transport.run_dir import replacing


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


def read_state(path: Path) -> TableState | None:
    """What write_state() wrote, checked by the archive's own checksums; None where there is no file. Raises DamagedState."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as arrays:
            numbers = json.loads(arrays["numbers"].tobytes())
            chunk_keys, values = arrays["chunk_keys"], arrays["values"]
        if chunk_keys.dtype != np.int64 or values.dtype != np.float64 or len(values) % max(len(chunk_keys), 1):
            raise ValueError("arrays of another kind")
        if not (np.isfinite(values).all() and (values >= 0).all()):
            raise ValueError("a priority that is no number")
        names = ("exponent", "highest", "random")
        selector = SelectorState(values=values, **{name: numbers[name] for name in names})
        inserted, sampled = int(numbers["inserted_items"]), int(numbers["sampled_items"])
        return TableState(int(numbers["next_chunk"]), chunk_keys, inserted, sampled, selector, numbers["counters"])
    except FileNotFoundError:
        return None
    except (OSError, EOFError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise DamagedState(f"{path.name} is damaged ({reason})") from error
