"""Where the experience of a policy server's clients goes."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import BinaryIO

import msgspec
import numpy as np

from actors.envs.spaces import Spaces, describe_space
from deploy.errors import ConfigError
from deploy.views.serving.sources import PolicyInfo
from replay.client.base import ReplayRefused
from replay.client.writer import ExperienceWriter
from replay.log.segments import SEGMENT_BYTES, ChunkHeader, LogRefused, Scan, SegmentStart, pack_record, scan
from transport.compression import crc32, pack_chunk
from transport.experience import Chunk, ExperienceSpec, SpecError, read_spec, write_spec
from transport.files.documents import read_bytes
from transport.files.file_lock import try_lock
from transport.files.writing import open_to_append, write_durably
from transport.lifetime import new_incarnation
from transport.run_dir import RunDir

MOST_OUTBOX = 256  # chunks that wait for replay: then the oldest is dropped, since nothing can slow clients down
DRAIN_SECONDS, POLL_SECONDS = 3.0, 0.02
WRITER = "serve"  # of the chunks in a folder


class ReplaySink:
    """The replay of a run that is up: this server is one of its writers."""

    def __init__(self, address: str, name: str, run: RunDir, spec: ExperienceSpec, streams: int) -> None:
        """`streams`: of chunks, at most. Raises KeysError."""
        self._writer = ExperienceWriter(address, name, new_incarnation(), spec, streams, run.keys(name))
        self._outbox: deque[Chunk] = deque()
        self.dropped, self.fault = 0, ""

    @property
    def steps(self) -> int:
        return self._writer.acknowledged_steps

    def insert(self, chunk: Chunk) -> None:
        self._outbox.append(chunk)
        if len(self._outbox) > MOST_OUTBOX:
            self._outbox.popleft()
            self.dropped += 1
        self.poll()

    def poll(self, timeout_seconds: float = 0) -> None:
        if self.fault:
            self.dropped += len(self._outbox)
            self._outbox.clear()
            return
        try:
            while self._outbox and self._writer.has_credit:
                self._writer.insert(self._outbox.popleft())
            self._writer.poll(timeout_seconds)
        except ReplayRefused as error:
            self.fault = str(error)

    def close(self) -> None:
        """Waits until replay has acknowledged all, for a while."""
        deadline = time.monotonic() + DRAIN_SECONDS
        while (self._outbox or self._writer.outstanding) and not self.fault and time.monotonic() < deadline:
            self.poll(POLL_SECONDS)
        self.dropped += len(self._outbox) + self._writer.outstanding
        self._writer.close()


class FolderSink:
    """A folder with spec.json, spaces.json and segments as replay's log has them, which `headrace dataset` and
    --replay.demonstrations read as that of a run. A server that is killed leaves whole chunks."""

    def __init__(self, path: Path, about: PolicyInfo) -> None:
        """Goes on with a folder of the same policy's observations and actions. Raises ConfigError, OSError."""
        run = RunDir(path)
        self.spec = msgspec.structs.replace(about.spec, unit="transitions", n_step=1, burn_in=0, goals=0, extras=())
        if run.config.exists():
            raise ConfigError(f"--record-to: {path} is a run; name a folder of its own")
        try:
            run.segments.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open_to_append(run.segments / ".lock", 0o600)
        except OSError as error:
            raise ConfigError(f"--record-to: cannot make the folder {path} ({error.strerror})") from error
        try:
            found = self._scan(run)
        except BaseException:
            self._lock.close()
            raise
        described = Spaces(describe_space(about.observation_space), describe_space(about.action_space))
        write_durably(run.spec, write_spec(self.spec))
        write_durably(run.spaces, msgspec.json.encode(described))
        self._folder, self._incarnation, self._sequence = run.segments, new_incarnation(), 0
        self._key = found.entries[-1].header.key + 1 if found.entries else 0
        self._file: BinaryIO | None = None
        self._steps = self.dropped = 0
        self.fault = ""

    @property
    def steps(self) -> int:
        return self._steps

    def _scan(self, run: RunDir) -> Scan:
        """What the folder holds. Raises ConfigError, OSError."""
        if not try_lock(self._lock):
            raise ConfigError(f"--record-to: another server records into {run.path}")
        try:
            if run.spec.exists() and read_spec(read_bytes(run.spec)).digest != self.spec.digest:
                raise ConfigError(f"--record-to: {run.path} has other observations or actions; name another folder")
            return scan(run.segments, self.spec)
        except (SpecError, LogRefused) as error:
            raise ConfigError(f"--record-to: {error}") from error

    def insert(self, chunk: Chunk) -> None:
        if self.fault:
            self.dropped += 1
            return
        parts = pack_chunk(self.spec, chunk)
        header = ChunkHeader(
            self._key, WRITER, self._incarnation, self._sequence, chunk.stream, chunk.length, crc32(parts), tuple(map(len, parts))
        )
        try:
            if self._file is None:
                self._file = open(self._folder / f"{self._key:016d}.segment", "wb")
                self._file.write(pack_record(SegmentStart(self.spec.digest, self._key, {})))
            self._file.write(pack_record(header, parts))
            self._file.flush()
            if self._file.tell() >= SEGMENT_BYTES:
                self._file.close()
                self._file = None
        except OSError as error:
            self.fault = f"cannot write: {error.strerror}"
            self.dropped += 1
            return
        self._key, self._sequence = self._key + 1, self._sequence + 1
        history = self.spec.history
        self._steps += int(np.count_nonzero(chunk.columns["valid"][history : history + chunk.length]))

    def poll(self) -> None:
        """Everything is written at once."""

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.close()
