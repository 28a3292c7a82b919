"""TensorBoard event files. Only the supervisor writes them; x = environment steps."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import IO

from deploy.reporting.base import Point
from transport.files.writing import open_to_append


class TensorBoard:
    """One event file per incarnation of the supervisor, in the run's folder tensorboard/. On a full disk points are lost."""

    def __init__(self, run: Path, config: object = None) -> None:
        """Writes and imports nothing before the first point."""
        self._folder = run / "tensorboard"
        self._file: IO[bytes] | None = None

    def write(self, record: Point) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        summary = Summary(value=[Summary.Value(tag=tag, simple_value=value) for tag, value in record.values.items()])
        try:
            self._append(Event(wall_time=record.time, step=record.steps, summary=summary).SerializeToString())
        except OSError:
            self.close()

    def close(self) -> None:
        """A later point opens another file."""
        if self._file is not None:
            try:
                self._file.close()
            except OSError:  # points that could not be flushed are lost
                pass
            self._file = None

    def _append(self, event: bytes) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        if self._file is None:
            self._folder.mkdir(exist_ok=True)
            name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
            self._file = open_to_append(self._folder / name)
            RecordWriter(self._file).write(Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString())
        RecordWriter(self._file).write(event)
        self._file.flush()
