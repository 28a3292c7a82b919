"""Cuts payloads into the parts of a message."""

from __future__ import annotations

from collections.abc import Iterable

import zmq

from transport.messages import MAX_PARTS

FRAME_BYTES = 64 * 1024  # larger payloads are cut to this, so that heartbeats pass between the pieces even at 40 kB/s

Parts = list[bytes]
Shared = zmq.Frame
Part = bytes | memoryview | Shared


def piece_bytes(payload_bytes: int) -> int:
    """The size of the pieces that `cut` makes of a payload: the frame limit, or more if there would be too many pieces."""
    return max(FRAME_BYTES, payload_bytes // (MAX_PARTS // 2))


def cut(payload: bytes | memoryview) -> list[memoryview]:
    view = memoryview(payload).cast("B")
    size = piece_bytes(len(view))
    return [view[start : start + size] for start in range(0, len(view), size)]


def shared(parts: Iterable[bytes | memoryview]) -> list[Shared]:
    """Wraps parts so that sending them, also to many peers, does not copy them."""
    return [Shared(part, copy=False) for part in parts]
