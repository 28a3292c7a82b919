"""Decodes JSON that people, other programs or a failing disk may have changed: whatever the bytes are, there is one error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Generic, TypeVar

import msgspec

from transport.files.regular import read_bytes

T = TypeVar("T")
# MsgspecError is no ValueError in older versions. Text that is not UTF-8 raises UnicodeDecodeError, which is one.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class Damaged(ValueError):
    """Bytes that are not the document they should be; the text says why in one line."""


def decode(data: bytes | str, kind: type[T]) -> T:
    """Decodes a document. Raises Damaged."""
    try:
        return msgspec.json.decode(data, type=kind)
    except DECODE_ERRORS as error:
        raise Damaged(reason(error)) from error


def read_document(path: Path, kind: type[T]) -> T:
    """Decodes the document in a file. Raises Damaged, which names the file; OSError."""
    try:
        return decode(read_bytes(path), kind)
    except Damaged as error:
        raise Damaged(f"{path} is damaged ({error})") from error


class LineDecoder(Generic[T]):
    """Decodes files of JSON lines. Their writer may be killed in the middle of a line."""

    def __init__(self, kind: type[T]) -> None:
        self._decoder = msgspec.json.Decoder(kind)

    def __call__(self, lines: Sequence[bytes]) -> list[T]:
        """The documents in these lines; those that are something else are left out."""
        try:
            return self._decoder.decode_lines(b"\n".join(lines))
        except DECODE_ERRORS:
            return [document for line in lines for document in self._alone(line)]

    def _alone(self, line: bytes) -> list[T]:
        try:
            return [self._decoder.decode(line)]
        except DECODE_ERRORS:
            return []


def reason(error: Exception) -> str:
    """An error's first line, for a message."""
    return "nested too deep" if isinstance(error, RecursionError) else str(error).partition("\n")[0][:200]
