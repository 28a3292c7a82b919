"""Every decoder under hypothesis: whatever it is given, it gives back what it read, or says in its own words why not."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from deploy import runs
from deploy.cli.main import parser_of
from deploy.config import command_line
from deploy.config.files import write_config
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import Needs, join
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from replay.config import ReplayConfig
from replay.log.segments import ChunkHeader, LogRefused, SegmentStart, pack_record, read_chunk, scan
from replay.log.state import STATE_FORMAT, DamagedState, read_state, write_state
from replay.table.inbox import RejectedChunk, check_chunk
from replay.table.layout import layout
from replay.table.ring import Ring
from tests.replay.examples import make_spec, stream_chunks
from tests.transport.columns import scalars
from transport.compression import CorruptChunk, crc32, pack_chunk, unpack_chunk
from transport.experience import Categorical, Chunk, Continuous, ExperienceSpec, SpecError, Start, observed, read_spec
from transport.messages.codec import TYPES, pack, unpack
from transport.messages.control import Answer, Assignment, Seen
from transport.messages.fields import MalformedMessage, Message
from transport.messages.hosts import Begun, Ended, HostHello, HostServer
from transport.messages.replay import Counts, Rows, ShardFigures
from transport.run_dir import RunDir
from transport.slab import Layout, Slab, SlabError

EXAMPLES = {"short": 40, "whole": 2_000, "full": 50_000}[os.environ.get("HEADRACE_CHAOS", "short")]
fuzz = settings(max_examples=EXAMPLES, deadline=None)

Json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


JsonText = Json.map(lambda value: json.dumps(value).encode())


@st.composite
def mutated(draw: Callable[..., Any], whole: bytes) -> bytes:
    """Sound bytes of which some were changed, cut off, doubled or put in."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(data) - 1, 0)))
        how = draw(st.integers(0, 4))
        if how == 0 and data:
            data[at] = draw(st.integers(0, 255))
        elif how == 1:
            data[at:at] = draw(st.binary(max_size=9))
        elif how == 2:
            del data[at : at + draw(st.integers(1, 9))]
        elif how == 3:
            del data[at:]
        else:
            data[at:at] = data[at : at + 20]
    return bytes(data)


def example(kind: type[Message]) -> Message:
    """A valid message of a type."""
    values: dict[str, Any] = {"state": "ready", "record": {"steps": 1.0}, "shared": True, "rollouts": False, "drain_seconds": 1.0}
    values |= {"sizes": (1, 2), "starts": (Start(3, 2**31 - 1, -1), Start(9, 0, 4))}
    values |= {"resting": True, "answer": Answer(7, False, "text"), "what": "pause", "result": "done", "text": "text"}
    counts = Counts(1, 0.5, 0.5)
    values |= {"counts": counts, "rows": Rows(0, 8, 0.5, counts)}
    values["figures"] = ShardFigures(1.5, 8, True, 1, 1, 1)
    ended = (Ended(3, -9, "text"),) if kind is HostHello else (3,)
    running = (Begun("actor-7", 5, "k" * 40, 100, "", 1_000, 50.0),)
    values |= {"public": "k" * 40, "running": running, "ended": ended, "leaving": False, "kill": True, "role": "actor"}
    values |= {"endpoints": {"replay": "tcp://trunk:1"}, "public_keys": {"replay": "k" * 40}, "orphan_seconds": 1.0}
    values |= {"assignment": Assignment(8, 64, 1), "lines": ("text", "text")}
    values["servers"] = (HostServer("relay", 100, 1, "text", 1_000, 50.0),)
    values |= {"keys": ("left", "a"), "ends": False, "steered": True, "picture": (60, 80), "refused": "text"}
    values |= {"actor": "actor-7", "total_reward": 1.5, "kind": "text", "bounds": (0.0, 1.0)}
    values |= {"actions": ("left", "right"), "figures": (0.5, 0.25)} if kind is Seen else {}
    fields = msgspec.structs.fields(kind)
    texts = {"name", "spec_digest", "reason", "sha256", "slab", "folder", "digest", "run", "host"}
    return kind(**{field.name: values.get(field.name, "text" if field.name in texts else 1) for field in fields})


# ---- messages


def test_every_message_has_another_tag() -> None:
    assert len(TYPES) == len(Message.__subclasses__()) > 30


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.__name__)
@fuzz
@given(data=st.data())
def test_a_mutated_header_is_a_message_or_malformed(kind: type[Message], data: st.DataObject) -> None:
    whole = pack(example(kind))
    assert unpack(whole) == example(kind)
    try:
        found = unpack(data.draw(mutated(whole)))
    except MalformedMessage as error:
        assert "\n" not in str(error).splitlines()[0]
    else:
        assert unpack(pack(found)) == found or found != found


@pytest.mark.parametrize("kind", TYPES.values(), ids=lambda kind: kind.__name__)
@fuzz
@given(data=st.data())
def test_wild_values_in_a_header_are_refused_or_within_their_limits(kind: type[Message], data: st.DataObject) -> None:
    fields = msgspec.to_builtins(example(kind))
    for name in data.draw(st.lists(st.sampled_from(sorted(fields)), max_size=3)):
        fields[name] = data.draw(st.integers(-(2**63), 2**64 - 1) | st.text(max_size=70) | st.floats() | st.binary(max_size=5))
    try:
        found = unpack(msgpack.packb(fields))
    except MalformedMessage:
        return
    for value in msgspec.structs.astuple(found):
        assert not isinstance(value, int) or -1 <= value <= 2**63 - 1
        assert not isinstance(value, str) or value.isprintable() or "\xad" <= max(value)


# ---- chunks


def specs() -> list[ExperienceSpec]:
    frame, goal = observed("frame", (4, 4), "|u1", 1 / 255, codec="lz4"), ("achieved_goal", "desired_goal")
    return [
        make_spec(length=4),
        ExperienceSpec((frame,), Categorical(3), 8, stack=4, n_step=3, extras=scalars("initial_priority")),
        ExperienceSpec(
            (msgspec.structs.replace(frame, codec="zstd"),), Continuous((-1.0,), (1.0,)), 4, extras=scalars("log_prob")
        ),
        join(ExperienceSpec(tuple(observed(name, (3,), "<f4") for name in goal), Continuous((0.0,), (1.0,)), 4), Needs(goals=2)),
    ]


@pytest.mark.parametrize("spec", specs(), ids=range(4))
@fuzz
@given(data=st.data())
def test_a_mutated_chunk_is_learned_from_or_refused(spec: ExperienceSpec, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, spec.chunk_length))
    columns = {column.name: np.zeros((spec.rows(length), *column.shape), column.dtype) for column in spec.columns}
    columns["valid"][:] = 1
    parts = pack_chunk(spec, Chunk(0, length, columns))
    at = data.draw(st.integers(0, len(parts) - 1))
    keep = data.draw(st.booleans())  # its length: then the small columns are wild numbers
    parts[at] = data.draw(st.binary(min_size=len(parts[at]), max_size=len(parts[at])) if keep else mutated(parts[at]))
    parts = parts[: data.draw(st.integers(0, len(parts)))] if data.draw(st.integers(0, 9)) == 0 else parts
    claimed = data.draw(st.sampled_from([length, length, 1, spec.chunk_length]))
    table = Ring(spec, ReplayConfig(min_size=1, capacity=4 * spec.chunk_length), seed=0)
    try:
        chunk = Chunk(0, claimed, unpack_chunk(spec, claimed, parts, table.vacant(claimed)))
        check_chunk(spec, chunk)
    except (CorruptChunk, RejectedChunk):
        return
    table.insert(chunk)
    table.check_invariants()
    if table.size:
        table.sample(room(spec))


def room(spec: ExperienceSpec) -> dict[str, np.ndarray]:
    arrangement = layout(spec, 16)
    return arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))


# ---- what lies on the disk


def segment() -> bytes:
    spec = make_spec(length=4)
    parts = pack_chunk(spec, stream_chunks(spec, {}, 8)[0])
    header = ChunkHeader(0, "actor-0", 1, 0, 0, 4, crc32(parts), tuple(map(len, parts)))
    later = msgspec.structs.replace(header, key=1, sequence=1)
    start = SegmentStart(spec.digest, 0, {"actor-0": (1, 0)})
    return pack_record(start) + pack_record(header, parts) + pack_record(later, parts)


@fuzz
@given(text=mutated(segment()) | st.binary(max_size=300))
def test_a_mutated_segment_is_read_as_far_as_it_is_sound(text: bytes) -> None:
    spec = make_spec(length=4)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "0000000000000000.segment"
        path.write_bytes(text)
        try:
            found = scan(Path(name), spec)
        except LogRefused:
            return
        for entry in found.entries:
            with open(entry.path, "rb") as file, suppress(CorruptChunk):
                read_chunk(file, entry, spec)


Wild = st.integers(-(2**63), 2**63 - 1)


@fuzz
@given(key=Wild, sequence=Wild, stream=Wild, length=Wild, crc=Wild, sizes=st.lists(Wild, max_size=3), writer=st.text(max_size=5))
def test_a_record_with_a_sound_checksum_and_wild_numbers_is_not_believed(
    key: int, sequence: int, stream: int, length: int, crc: int, sizes: list[int], writer: str
) -> None:
    spec = make_spec(length=4)
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "0000000000000000.segment"
        path.write_bytes(pack_record(ChunkHeader(key, writer, 1, sequence, stream, length, crc, tuple(sizes))))
        found = scan(Path(name), spec)
        for entry in found.entries:
            with open(path, "rb") as file, pytest.raises(CorruptChunk):
                read_chunk(file, entry, spec)


def state_file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        table = Ring(make_spec(length=4), ReplayConfig(min_size=1, capacity=16), seed=0)
        for chunk in stream_chunks(make_spec(length=4), {}, 12):
            table.insert(chunk)
        write_state(Path(name) / "state.npz", table.state())
        return (Path(name) / "state.npz").read_bytes()


def wild_state(numbers: Any, keys: np.ndarray, values: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.savez(file, numbers=np.frombuffer(json.dumps(numbers).encode(), np.uint8), chunk_keys=keys, values=values)
    return file.getvalue()


Often = st.integers(0, 9)  # else hardly any state would be right in all but one of its numbers
Drawing = st.fixed_dictionaries(
    {
        "exponent": st.floats(0, 1) | Json,
        "highest": st.floats() | Json,
        "random": st.just(dict(np.random.default_rng(0).bit_generator.state)) | Json,
    }
)
Counters = st.dictionaries(st.text(max_size=8), st.floats(), max_size=2)
Numbers = st.fixed_dictionaries(
    {
        "format": st.just(STATE_FORMAT),
        **{name: Often | Json for name in ("next_chunk", "inserted_items", "sampled_items")},
        "selector": Drawing | Json,
        "counters": Counters | Json,
    }
)
WildStates = st.builds(
    wild_state,
    Json | Numbers,
    st.sampled_from([np.zeros(5, np.int64), np.zeros(0, np.int64), np.zeros((2, 2), np.int64), np.full(5, 2**62), np.array(3)]),
    st.sampled_from([np.zeros(20), np.zeros(0), np.zeros((5, 4)), np.full(20, -1.0), np.array(1.0)]),
)


@fuzz
@given(text=mutated(state_file()) | WildStates | st.binary(max_size=100))
def test_a_mutated_state_is_taken_up_or_damaged(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "state.npz"
        path.write_bytes(text)
        try:
            state = read_state(path, 4)
        except DamagedState:
            return
        assert state is not None
        table = Ring(make_spec(length=4), ReplayConfig(min_size=1, capacity=16), seed=0)
        try:
            table.resume(state)
        except ValueError:
            return
        table.restore_priorities(state)


def weights() -> dict[str, torch.Tensor]:
    return nn.Linear(3, 2).state_dict()


@fuzz
@given(payload=mutated(checkpoint.pack(weights())) | st.binary(max_size=200))
def test_mutated_weights_are_adopted_whole_or_refused(payload: bytes) -> None:
    module = nn.Linear(3, 2)
    before = [value.clone() for value in module.state_dict().values()]
    try:
        checkpoint.load_into(module, checkpoint.unpack(payload))
    except CheckpointError:
        assert all(torch.equal(one, other) for one, other in zip(before, module.state_dict().values(), strict=True))
    assert all(value.isfinite().all() for value in module.state_dict().values())


def checkpoint_file() -> bytes:
    with tempfile.TemporaryDirectory() as name:
        checkpoint.write(Path(name) / "c", weights(), {"epoch": "1"})
        return (Path(name) / "c").read_bytes()


@fuzz
@given(text=mutated(checkpoint_file()) | st.binary(max_size=100))
def test_a_mutated_checkpoint_is_refused(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "c").write_bytes(text)
        try:
            found, _ = checkpoint.read(Path(name) / "c")
        except CheckpointError:
            return
        assert {key: value.shape for key, value in found.items()} == {"weight": (2, 3), "bias": (2,)}


@fuzz
@given(text=mutated(msgspec.json.encode(specs()[3])) | JsonText | st.binary(max_size=99))
def test_a_mutated_spec_is_a_spec_or_an_error_with_a_reason(text: bytes) -> None:
    try:
        spec = read_spec(text)
    except SpecError:
        return
    assert spec.digest and spec.chunk_bytes > 0 and spec.columns


CONFIG = write_config(RunConfig())


@fuzz
@given(text=mutated(CONFIG) | st.binary(max_size=99))
def test_any_text_is_a_configuration_or_a_configuration_error(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        (Path(name) / "config.toml").write_bytes(text)
        try:
            load_run_config(RunDir(Path(name)), trusted=True)
        except ConfigError as error:
            assert str(error)


@fuzz
@given(section=st.sampled_from(["env", "actors", "replay", "learner", "deploy", "algorithm", "x"]), tree=Json)
def test_any_table_is_a_configuration_or_a_configuration_error(section: str, tree: Any) -> None:
    with tempfile.TemporaryDirectory() as name:
        try:
            (Path(name) / "config.toml").write_text(tomli_w.dumps({section: tree}))
        except (TypeError, ValueError):
            return
        try:
            load_run_config(RunDir(Path(name)), trusted=True)
        except ConfigError as error:
            assert str(error)


FLAGS = [
    "up",
    "--env",
    "--actors",
    "--replay.capacity",
    "--learner.lr",
    "--seed",
    "--algo",
    "-1",
    "nan",
    "1e999",
    "9" * 5000,
    "--",
    "",
]


@fuzz
@given(words=st.lists(st.sampled_from(FLAGS) | st.text(max_size=9), max_size=6))
def test_any_command_line_is_understood_or_a_configuration_error(words: list[str]) -> None:
    parser = parser_of("up")
    try:
        command_line.parse(parser, command_line.normalised(words), "up")
    except ConfigError as error:
        assert str(error)
    except SystemExit as end:
        assert end.code == 0  # --help


@fuzz
@given(text=JsonText | st.binary(max_size=60))
def test_files_of_a_run_that_hold_anything_are_as_good_as_none(text: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        run = RunDir(Path(name))
        run.create()
        (run.path / "endpoints" / "replay.json").write_bytes(text)
        run.status.write_bytes(text)
        address = run.endpoint("replay")
        assert address is None or isinstance(address, str)
        assert runs.read_status(run) is None or isinstance(runs.read_status(run), dict)


# ---- shared memory


@fuzz
@given(
    name=st.text(max_size=30) | st.sampled_from(["/dev/zero", "/dev/fd/0", "/proc/self/fd/0", "/proc/1/fd/1", "/proc/self/mem"])
)
def test_no_name_of_a_slab_opens_anything_else(name: str) -> None:
    with pytest.raises(SlabError):
        Slab.open(Layout((("key", (1,), "<i8"),)), 1, name)
