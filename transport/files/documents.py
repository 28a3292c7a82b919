"""Opens and decodes the files of a run, which people, other programs or a failing disk may have changed.

In place of a file may be a pipe, a device, a socket or a folder: nothing waits for it. Whatever the bytes are, there is one
error.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO, Generic, Literal, TypeVar

import msgspec

T = TypeVar("T")
ASIDE = ".aside"
NO_FILE = "it is not a regular file"
NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer is opened at once
# MsgspecError is no ValueError in older versions. Text that is not UTF-8 raises UnicodeDecodeError, which is one.
DECODE_ERRORS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


def open_file(path: Path, mode: Literal["rb", "r+b", "ab", "a+b"] = "rb", flags: int = 0, permissions: int = 0o666) -> BinaryIO:
    """As open(). Raises OSError, also for anything but a regular file."""

    def opener(name: str, given: int) -> int:
        try:
            descriptor = os.open(name, given | flags | NO_WAIT, permissions)
        except PermissionError:
            if os.path.isdir(name):  # Windows opens no folder
                raise OSError(errno.EINVAL, NO_FILE, str(path)) from None
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise OSError(errno.EINVAL, NO_FILE, str(path))
        return descriptor

    return open(path, mode, opener=opener)


def read_bytes(path: Path) -> bytes:
    """The content of a file. Raises OSError."""
    with open_file(path) as file:
        return file.read()


def read_text(path: Path) -> str:
    """As read_bytes(). Raises OSError, UnicodeDecodeError."""
    return read_bytes(path).decode()


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
