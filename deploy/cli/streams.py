"""Standard streams that are closed or lack letters, and pipes whose reader has ended."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))


def open_closed() -> None:
    """Opens the standard streams that are closed (`headrace up >&-`) on the null device. Otherwise the next file that is opened
    would get the descriptor of stdout, and printed lines would be written into it."""
    for number, (name, mode) in enumerate(STREAMS):
        if getattr(sys, name) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            setattr(sys, name, os.fdopen(number, mode))


def print_any_letter() -> None:
    """From now on a letter that stdout does not have, such as `·` in ASCII, is printed as `?`."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")


def tell(text: str) -> None:
    """Prints a line on stderr. If stderr cannot be written, the command goes on and keeps its exit status."""
    try:
        print(text, file=sys.stderr, flush=True)
    except OSError:
        sys.stderr = open(os.devnull, "w")  # the interpreter flushes it once more at its end


class UnbreakableStream:
    """A stream for a command that must not end with its reader (`headrace up | head -3`): what cannot be written is dropped."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            return self._drop(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._drop("")

    def _drop(self, text: str) -> int:
        """Sends what is buffered, and all that follows, to the null device."""
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, self._stream.fileno())
        os.close(null)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
