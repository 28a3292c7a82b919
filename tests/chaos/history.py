"""What an actor process did, written down as it does it: each step attempted, each chunk handed over, each acknowledgement.

One file per life of an actor, appended by os.write, so that kill -9 of the process loses nothing. A record is

    kind (u8) | body bytes (u32) | crc32 of kind, size and body (u32) | body

and the last one may be torn. A step is named by (identity, episode, step) of the counting environment, packed into an int64.
"""

from __future__ import annotations

import json
import os
import struct
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from replay.client.writer import ExperienceWriter
from tests.flow.counting_env import ACTIONS
from transport.experience import Chunk, ExperienceSpec

HISTORY_VARIABLE = "HEADRACE_CHAOS_HISTORY"  # the folder of the histories; without it nothing is recorded
HEAD = struct.Struct("<BII")
LIFE, STEP, INSERT, ACKNOWLEDGED = range(4)


def pack_id(identity: int, episode: int, step: int) -> int:
    """A step's name as one number."""
    return identity << 32 | episode << 16 | step


def unpack_id(packed: int) -> tuple[int, int, int]:
    """(identity, episode, step)."""
    return packed >> 32, packed >> 16 & 0xFFFF, packed & 0xFFFF


class Recorder:
    """The history of one life, open for appending."""

    def __init__(self, folder: Path, name: str, incarnation: int) -> None:
        """Makes the file."""
        self.path = folder / f"{name}-{os.getpid()}-{incarnation}.history"
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._write(LIFE, json.dumps({"name": name, "incarnation": incarnation, "began": time.monotonic()}).encode())

    def step(self, identity: int, episode: int, step: int) -> None:
        """A step is about to be taken."""
        self.step_named(pack_id(identity, episode, step))

    def step_named(self, name: int) -> None:
        """The same of a simulator that names its steps in another way."""
        self._write(STEP, struct.pack("<q", name))

    def insert(self, sequence: int, ids: np.ndarray) -> None:
        """A chunk with these valid items is about to be handed over."""
        self._write(INSERT, struct.pack("<q", sequence) + ids.astype("<i8").tobytes())

    def acknowledged(self, next_sequence: int) -> None:
        """Every chunk below is known to be stored."""
        self._write(ACKNOWLEDGED, struct.pack("<q", next_sequence))

    def close(self) -> None:
        """Nothing is lost without it."""
        os.close(self._file)

    def _write(self, kind: int, body: bytes) -> None:
        checksum = zlib.crc32(body, zlib.crc32(struct.pack("<BI", kind, len(body))))
        os.write(self._file, HEAD.pack(kind, len(body), checksum) + body)


@dataclass
class Life:
    """What a life of an actor did, as read from its history."""

    name: str
    incarnation: int
    began: float = 0.0  # seconds of the machine's monotonic clock
    steps: list[int] = field(default_factory=list)
    inserts: dict[int, np.ndarray] = field(default_factory=dict)  # sequence -> names of the valid items
    acknowledged: int = 0  # every sequence below
    torn: bool = False


def read_life(path: Path) -> Life:
    """Reads a history up to its torn end, if it has one. Raises ValueError where it begins with something else than a life."""
    data = path.read_bytes()
    life: Life | None = None
    at = 0
    while at < len(data):
        record = _record(data, at)
        if record is None:
            break
        kind, body = record
        at += HEAD.size + len(body)
        if kind == LIFE:
            life = Life(**json.loads(body))
        elif life is None:
            break
        elif kind == STEP:
            life.steps.append(struct.unpack("<q", body)[0])
        elif kind == INSERT:
            life.inserts[struct.unpack_from("<q", body)[0]] = np.frombuffer(body, "<i8", offset=8)
        else:
            life.acknowledged = max(life.acknowledged, struct.unpack("<q", body)[0])
    if life is None:
        raise ValueError(f"{path} is no history")
    life.torn = at < len(data)
    return life


def _record(data: bytes, at: int) -> tuple[int, bytes] | None:
    if len(data) - at < HEAD.size:
        return None
    kind, size, checksum = HEAD.unpack_from(data, at)
    body = data[at + HEAD.size : at + HEAD.size + size]
    if len(body) < size or zlib.crc32(body, zlib.crc32(struct.pack("<BI", kind, size))) != checksum:
        return None
    return kind, body


def read_histories(folder: Path) -> list[Life]:
    """All lives of a run, by when they began. One that was killed before its first record was whole did nothing yet."""
    lives = []
    for path in folder.glob("*.history"):
        try:
            lives.append(read_life(path))
        except ValueError:
            assert path.stat().st_size < HEAD.size + 200, f"{path} is no history"
    return sorted(lives, key=lambda life: life.began)


def ids_of(spec: ExperienceSpec, chunk: Chunk) -> np.ndarray:
    """The names [items] int64 of a chunk's valid items, whose observations are the counting environment's."""
    items = slice(spec.history, spec.history + chunk.length)
    valid = chunk.columns["valid"][items] != 0
    seen = chunk.columns["observation"]
    code = seen[items][valid].reshape(int(valid.sum()), seen[0].size)[:, :8].astype(np.int64)  # there may be none
    assert (code[:, 6] <= ACTIONS).all()
    return code[:, 0] << 40 | code[:, 1] << 32 | code[:, 2] << 24 | code[:, 3] << 16 | code[:, 4] << 8 | code[:, 5]


current: Recorder | None = None  # of this process's only writer, or of the one that was made last


@contextmanager
def recording(folder: Path) -> Iterator[None]:
    """While the block lasts, every ExperienceWriter that this process makes writes its history into `folder`."""
    global current
    begin, insert, acknowledge = ExperienceWriter.__init__, ExperienceWriter.insert, ExperienceWriter._acknowledge
    recorders: dict[int, Recorder] = {}  # by the writer's id: none is forgotten while the block lasts
    writers: list[ExperienceWriter] = []

    def recorded_begin(writer: ExperienceWriter, *arguments: Any, **named: Any) -> None:
        global current
        begin(writer, *arguments, **named)
        writers.append(writer)
        recorders[id(writer)] = current = Recorder(folder, writer._name, writer.incarnation)

    def recorded_insert(writer: ExperienceWriter, chunk: Chunk) -> None:
        recorders[id(writer)].insert(writer._next_sequence, naming(writer._spec, chunk))
        insert(writer, chunk)

    def recorded_acknowledge(writer: ExperienceWriter, next_sequence: int) -> None:
        recorders[id(writer)].acknowledged(next_sequence)
        acknowledge(writer, next_sequence)

    with (
        patch.object(ExperienceWriter, "__init__", recorded_begin),
        patch.object(ExperienceWriter, "insert", recorded_insert),
        patch.object(ExperienceWriter, "_acknowledge", recorded_acknowledge),
    ):
        try:
            yield
        finally:
            current = None
            for recorder in recorders.values():
                recorder.close()


def name_by(names_of: Callable[[ExperienceSpec, Chunk], np.ndarray]) -> None:
    """For a simulator other than the counting one: how the valid items of a chunk are named."""
    global naming
    naming = names_of


naming: Callable[[ExperienceSpec, Chunk], np.ndarray] = ids_of


def install() -> None:
    """Records for as long as this process lives, where HEADRACE_CHAOS_HISTORY names a folder."""
    if folder := os.environ.get(HISTORY_VARIABLE):
        for_good.enter_context(recording(Path(folder)))


for_good = ExitStack()  # a context that nobody holds would end at once
