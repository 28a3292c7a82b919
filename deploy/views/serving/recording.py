"""Clients' episodes as experience: into the replay of a run that is up, or into a folder that is read as a data set.

Each step is recorded once. A step is recorded when its client has said what it led to. One whose chunk has not been acknowledged
is lost if the server is killed; it is in no other chunk.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import NamedTuple, Protocol

import numpy as np

from actors.chunker import Chunker
from replay.table.inbox import RejectedChunk, check_chunk
from transport.experience import Chunk, Columns, ExperienceSpec

MOST_STREAMS = 128  # clients that are recorded at the same time
CHUNK_SECONDS = 5.0  # after which a chunk leaves that is not full


class Sink(Protocol):
    """Where chunks go."""

    dropped: int  # chunks that are lost
    fault: str  # why it takes no more; empty while it does

    @property
    def steps(self) -> int:
        """That are kept for certain."""

    def insert(self, chunk: Chunk) -> None: ...

    def poll(self) -> None: ...

    def close(self) -> None: ...


class Recording:
    """The chunks of all sessions."""

    def __init__(
        self,
        spec: ExperienceSpec,
        sink: Sink,
        annotate: Callable[[Columns], Columns] | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`annotate`: as an acting policy has it; None: rows have no columns of an algorithm."""
        self.spec, self.sink, self.clock = spec, sink, clock
        self.annotate = annotate
        self._free = list(range(MOST_STREAMS))
        self._open: set[StreamRecorder] = set()
        self.unrecorded = 0  # sessions for which there was no place

    def open(self) -> StreamRecorder | None:
        """For a session; None where there are too many."""
        if not self._free:
            self.unrecorded += 1
            return None
        recorder = StreamRecorder(self, self._free.pop())
        self._open.add(recorder)
        return recorder

    def insert(self, chunks: Iterable[Chunk], stream: int) -> None:
        for chunk in chunks:
            try:
                check_chunk(self.spec, chunk)
            except RejectedChunk:
                self.sink.dropped += 1
                continue
            self.sink.insert(replace(chunk, stream=stream))

    def closed(self, recorder: StreamRecorder, stream: int) -> None:
        self._open.discard(recorder)
        self._free.append(stream)

    def poll(self) -> None:
        """Sends what has waited for long. Call it often."""
        for recorder in list(self._open):
            recorder.flush_late()
        self.sink.poll()


class PendingAction(NamedTuple):
    """An action whose result is not known yet; arrays of one row."""

    observation: Columns
    action: np.ndarray
    version: int
    columns: Columns


class StreamRecorder:
    """The steps of one client's environment, in order."""

    def __init__(self, recording: Recording, stream: int) -> None:
        self._recording, self._stream = recording, stream
        self._chunker: Chunker | None = None
        self._last: tuple[Columns, int] = {}, 0  # the newest observation, and the version of the last step
        self._since = recording.clock()

    def step(self, pending: PendingAction, observation: Columns, reward: float, terminated: bool, truncated: bool) -> None:
        """`observation` [1, *shape] is the next one, or the last of the episode."""
        recording, version = self._recording, max(pending.version, 0)
        if self._chunker is None:
            annotate = recording.annotate or _unchanged
            self._chunker = Chunker(recording.spec, 1, CHUNK_SECONDS, recording.clock, annotate)
        result = np.array([reward], np.float32), np.array([terminated]), np.array([truncated and not terminated])
        columns = pending.columns if recording.annotate else {}
        self._last = observation, version
        chunks = self._chunker.step(pending.observation, pending.action, *result, observation, version, columns)
        recording.insert(chunks, self._stream)

    def break_off(self) -> None:
        """The episode does not go on after its newest observation."""
        if self._chunker is not None:
            self._recording.insert(self._chunker.drain(*self._last), self._stream)
        self._chunker = None

    def end(self) -> None:
        """The session does not go on."""
        self.break_off()
        self._recording.closed(self, self._stream)

    def flush_late(self) -> None:
        now = self._recording.clock()
        if self._chunker is not None and now - self._since > CHUNK_SECONDS:
            self._since = now
            self._recording.insert(self._chunker.flush(), self._stream)


def _unchanged(columns: Columns) -> Columns:
    return columns
