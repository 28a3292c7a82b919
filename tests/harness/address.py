"""Addresses of servers of one test."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def local_address(folder: Path, name: str) -> str:
    """A private socket in the folder; on Windows, which has none, a free port."""
    if os.name == "posix":
        return f"ipc://{folder}/{name}"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"tcp://127.0.0.1:{probe.getsockname()[1]}"
