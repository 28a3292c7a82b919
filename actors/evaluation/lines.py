"""Files of JSON lines whose writer may be killed at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from transport.files.documents import read_bytes
from transport.files.writing import open_to_append, replace


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The objects in a file, up to the first line that is incomplete or damaged; none if there is no file."""
    try:
        lines = read_bytes(path).splitlines(keepends=True)
    except FileNotFoundError:
        return
    for line in lines:
        try:
            found = json.loads(line) if line.endswith(b"\n") else None
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            return
        yield found


def mend(path: Path) -> None:
    """Removes what `read_lines` leaves out, so that lines can be added."""
    whole = "".join(f"{json.dumps(line)}\n" for line in read_lines(path))
    temporary = path.with_suffix(".part")
    temporary.write_text(whole)
    replace(temporary, path)


def add_line(path: Path, line: dict[str, Any]) -> None:
    """Appends a line. Raises ValueError for a number that is not finite."""
    with open_to_append(path) as file:
        file.write(json.dumps(line, allow_nan=False).encode() + b"\n")
