"""Replay and its writers with a part of their safety left out, to see what it costs: `python -m … PARTS RUN_DIR`.

checksums   neither made nor compared (the records of the log keep those of their headers)
acks        a chunk that was handed to the socket counts as written: nothing is kept, nothing sent again, and replay says nothing
"""

from __future__ import annotations

import sys
from typing import Any
from unittest.mock import patch

import replay.__main__
import replay.client.writer
import replay.server.server
import replay.server.writers
import replay.table.inbox
import transport.sockets.channel
import transport.sockets.server
from replay.client.writer import ExperienceWriter
from replay.server.writers import Writers

PARTS = ("checksums", "acks")
QUEUE = 16  # messages: what waits in sockets is counted as written
NOT_A_WHILE_SECONDS = 0.0005  # between two looks whether a socket takes more: no acknowledgement says so here


def leave_out(parts: tuple[str, ...]) -> None:
    """For the rest of this process's life."""
    if "checksums" in parts:
        for module in (replay.client.writer, replay.table.inbox):
            _put(module, "crc32", lambda parts: 0)
    if "acks" in parts:
        for module in (transport.sockets.channel, transport.sockets.server, replay.server.server):
            _put(module, "QUEUE_MESSAGES", QUEUE)
        _put(replay.server.server, "MESSAGES_PER_TURN", 8)  # few, so that the queue waits in the writers
        send = ExperienceWriter._send

        def send_and_forget(writer: ExperienceWriter) -> None:
            send(writer)
            writer._acknowledge(writer._next_to_send)

        _put(ExperienceWriter, "_send", send_and_forget)
        _put(Writers, "acknowledge", lambda writers: writers._inbox.advanced.clear())


def _put(where: Any, name: str, value: object) -> None:
    patch.object(where, name, value).start()


def main() -> int:
    """The server."""
    leave_out(tuple(sys.argv.pop(1).split(",")))
    return replay.__main__.main()


if __name__ == "__main__":
    sys.exit(main())
