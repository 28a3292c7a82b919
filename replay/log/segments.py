"""The file format of replay's segment log, and reading it, damaged files included.

A segment is a file `FIRST_KEY.segment` of records:

    magic (8 bytes) | header bytes (u32) | body bytes (u32) | crc32 of these two numbers and the header (u32) | header | body

The header is MessagePack: a SegmentStart in the first record, a ChunkHeader in all others. The body of a chunk's record is the
parts of its Insert message as they came over the wire, with the checksum of that message.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
from msgspec import Meta, Struct

from replay.log.files import is_regular, open_regular, set_aside
from transport.compression import CorruptChunk, chunk_wire_bytes, crc32, unpack_chunk
from transport.experience import MOST_STARTS, Chunk, ExperienceSpec, Start
from transport.messages.fields import Count, Incarnation

FAMILY, FORMAT = b"\x89HRseg", b"2"  # the start of every record; the digit is the format number
MAGIC = FAMILY + FORMAT + b"\n"
NUMBERS = struct.Struct("<II")  # header bytes, body bytes
CHECKSUM = struct.Struct("<I")
PREFIX_BYTES = len(MAGIC) + NUMBERS.size + CHECKSUM.size
SEGMENT_BYTES = 64 * 1024 * 1024  # at which a segment ends
MAX_HEADER_BYTES = 1 << 22  # a SegmentStart names every actor of the run
MOST_PARTS = 4096
MOST_KEYS = 1 << 40  # of chunks; keys of items, up to 65,536 times larger, fit into int64

# A correct checksum does not prove that replay wrote the file, so all numbers have limits.
Size = Annotated[int, Meta(ge=0, le=2**32 - 1)]
ChunkKey = Annotated[int, Meta(ge=0, lt=MOST_KEYS)]
Name = Annotated[str, Meta(max_length=64)]
Writers = dict[Name, tuple[Incarnation, Count]]  # actor -> (incarnation, next sequence)


class LogRefused(ValueError):
    """A log that this run cannot continue; the text says why, and what to do, in one line."""


class SegmentStart(Struct, frozen=True, forbid_unknown_fields=True, tag="start"):
    """The first record of a segment: all actors' sequences before it, so that older segments can be deleted.

    A purged segment also ends with one: `first_key` is then the key after the segment's last chunk, which may have been purged.
    """

    spec_digest: Name
    first_key: ChunkKey
    writers: Writers
    run: Name = ""  # the id of the run that wrote it; older versions wrote none


class ChunkHeader(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, tag="chunk"):
    """The origin of a chunk, and the sizes of the parts in its body. Older versions wrote no `starts`."""

    key: ChunkKey
    writer: Name
    incarnation: Incarnation
    sequence: Count
    stream: Size
    length: Annotated[int, Meta(ge=1, le=65_536)]
    crc32: Size
    sizes: Annotated[tuple[Size, ...], Meta(max_length=MOST_PARTS)]
    starts: Annotated[tuple[Start, ...], Meta(max_length=MOST_STARTS)] = ()


_decoder = msgspec.msgpack.Decoder(SegmentStart | ChunkHeader)


def pack_record(header: SegmentStart | ChunkHeader, parts: Sequence[bytes] = ()) -> bytes:
    text = msgspec.msgpack.encode(header)
    numbers = NUMBERS.pack(len(text), sum(map(len, parts)))
    return b"".join([MAGIC, numbers, CHECKSUM.pack(zlib.crc32(text, zlib.crc32(numbers))), text, *parts])


@dataclass(frozen=True)
class LoggedChunk:
    """A chunk in the log."""

    path: Path
    offset: int  # of its body in the file
    header: ChunkHeader


@dataclass
class Scan:
    entries: list[LoggedChunk] = field(default_factory=list)  # in the order of their keys
    writers: Writers = field(default_factory=dict)
    torn: int = 0  # records that were not written completely
    damaged: int = 0  # places whose content differs from what was written
    faulty: set[Path] = field(default_factory=set)  # the segments that have such places
    purged_to: int = 0  # the key after the last chunk of purged segments: chunks before it that are absent were not lost
    missing: int = 0  # chunks that the saved state counts but the log does not have: lost in a power cut

    def add(self, path: Path, offset: int, header: ChunkHeader) -> None:
        if self.entries and header.key <= self.entries[-1].header.key:
            self.spoilt(path)
            return
        self.entries.append(LoggedChunk(path, offset, header))
        self.writers[header.writer] = (header.incarnation, header.sequence + 1)

    def spoilt(self, path: Path) -> None:
        self.damaged += 1
        self.faulty.add(path)


def segments(folder: Path) -> list[Path]:
    """The segment files, oldest first."""
    return sorted(path for path in folder.glob("*.segment") if is_regular(path))


def scan(folder: Path, spec: ExperienceSpec, run: str = "", report: Callable[[str], None] = lambda line: None) -> Scan:
    """Reads all headers, and truncates incomplete records at the end of files.

    What the run with this id (empty: any run) cannot have written is set aside, or left where it is if it is no file, and
    reported in a line. Raises LogRefused, OSError.
    """
    found = Scan()
    for path in sorted(set(folder.glob("*.segment")) - set(segments(folder))):
        report(f"{path} is not a regular file: it is not read")
    for path in segments(folder):
        if reason := _foreign(path, spec, run):
            found.damaged += 1
            report(f"{path} {reason}: it is now {set_aside(path).name}")
            continue
        end = scan_segment(path, spec, found)
        if end < path.stat().st_size:
            with open_regular(path, change=True) as file:
                file.truncate(end)
    return found


def _foreign(path: Path, spec: ExperienceSpec, run: str) -> str:
    """Why a file cannot be a segment of this run, for a message; empty if it can. Raises LogRefused, OSError."""
    if path.stat().st_size > SEGMENT_BYTES + 2 * (MAX_HEADER_BYTES + chunk_wire_bytes(spec)):
        return "is larger than a segment"
    with open_regular(path) as file:
        begins = _check_format(path, file)
        if not MAGIC.startswith(begins) and _next_record(file, 0) is None:
            return "holds no record of replay"
        start = start_of(file)
    return "was written by another run" if run and start and start.run not in ("", run) else ""


def scan_segment(path: Path, spec: ExperienceSpec, found: Scan) -> int:
    """Adds the contents of a segment; returns the offset behind its last complete record. Raises LogRefused, OSError."""
    size = path.stat().st_size
    position = 0
    with open_regular(path) as file:
        _check_format(path, file)
        while position < size:
            record = _read_header(file, position)
            if record is None:
                following = _next_record(file, position + 1)
                if following is None:
                    found.torn += 1
                    return position
                found.spoilt(path)
                position = following
                continue
            header, offset, body_bytes = record
            if offset + body_bytes > size:
                found.torn += 1
                return position
            if isinstance(header, ChunkHeader):
                found.add(path, offset, header)
            else:
                if header.spec_digest != spec.digest:
                    raise LogRefused(
                        f"{path} has chunks of another experience spec ({header.spec_digest}, this run has {spec.digest}): "
                        "start with --fresh, or as another run"
                    )
                found.writers.update(header.writers)
                if position:
                    found.purged_to = max(found.purged_to, header.first_key)
            position = offset + body_bytes
    return size


def _check_format(path: Path, file: BinaryIO) -> bytes:
    """The first bytes of the file. Raises LogRefused for another format."""
    begins = file.read(len(MAGIC))
    found = begins[len(FAMILY) : -1]
    if begins.startswith(FAMILY) and found.isdigit() and found != FORMAT:
        raise LogRefused(
            f"{path} has format {found.decode()}, this version of headrace reads format {FORMAT.decode()}: start with --fresh, "
            f"or delete {path.parent} to continue with an empty table"
        )
    return begins


def _read_header(file: BinaryIO, position: int) -> tuple[SegmentStart | ChunkHeader, int, int] | None:
    """(header, offset of the body, bytes of the body) of the record at `position`; None if there is no valid header."""
    file.seek(position)
    prefix = file.read(PREFIX_BYTES)
    if len(prefix) < PREFIX_BYTES or not prefix.startswith(MAGIC):
        return None
    numbers = prefix[len(MAGIC) : len(MAGIC) + NUMBERS.size]
    header_bytes, body_bytes = NUMBERS.unpack(numbers)
    if header_bytes > MAX_HEADER_BYTES:
        return None
    text = file.read(header_bytes)
    if len(text) < header_bytes or zlib.crc32(text, zlib.crc32(numbers)) != CHECKSUM.unpack(prefix[-CHECKSUM.size :])[0]:
        return None
    try:
        header = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # ValidationError included
        return None
    if sum(header.sizes if isinstance(header, ChunkHeader) else ()) != body_bytes:
        return None
    return header, position + PREFIX_BYTES + header_bytes, body_bytes


def start_of(file: BinaryIO) -> SegmentStart | None:
    """The first record of a segment; None if it is damaged."""
    record = _read_header(file, 0)
    return record[0] if record and isinstance(record[0], SegmentStart) else None


def _next_record(file: BinaryIO, position: int) -> int | None:
    """The offset of the next valid header."""
    file.seek(position)
    rest = file.read()
    at = rest.find(MAGIC)
    while at >= 0:
        if _read_header(file, position + at):
            return position + at
        at = rest.find(MAGIC, at + 1)
    return None


def read_chunk(file: BinaryIO, entry: LoggedChunk, spec: ExperienceSpec) -> Chunk:
    """Reads the chunk of an entry from its open file. Raises CorruptChunk."""
    header = entry.header
    if sum(header.sizes) > chunk_wire_bytes(spec) or not 1 <= header.length <= spec.chunk_length:
        raise CorruptChunk("larger than the spec allows")
    file.seek(entry.offset)
    parts = [file.read(size) for size in header.sizes]
    if crc32(parts) != header.crc32:
        raise CorruptChunk("checksum differs")
    return Chunk(header.stream, header.length, unpack_chunk(spec, header.length, parts), header.starts)
