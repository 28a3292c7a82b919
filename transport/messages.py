"""The typed messages. On the wire a message is one MessagePack header part, then the raw parts its docstring names.

A header is read with msgpack under explicit limits and only then converted into its struct, which refuses unknown fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal, get_args

import msgpack
import msgspec
from msgspec import Meta, Struct

PROTOCOL = 4
MAX_HEADER_BYTES = 64 * 1024
MAX_PARTS = 4096
MOST_ACTORS = 1024
DRAIN_SECONDS = 2.0  # of an actor, when the whole run stops

Count = Annotated[int, Meta(ge=0, le=2**62)]
Incarnation = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # random at each start of a process
Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # fits the column that rows keep it in
# Names and texts of others are shown to people: nothing in them may steer a terminal, or change the order of what is read.
Name = Annotated[str, Meta(max_length=64, pattern=r"^[ -~]*\Z")]
UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
MAX_TEXT = 4096
Text = Annotated[str, Meta(max_length=MAX_TEXT, pattern=rf"^(?!.*{UNPRINTABLE})[^\n]*\Z")]


class MalformedMessage(ValueError):
    """What arrived is not a message: the text says in which way."""


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of all headers."""


# ---- experience: actor (DEALER) -> replay (ROUTER) --------------------------------------------------------------------


class WriterHello(Message, frozen=True, tag="writer_hello"):
    """An actor greets, on first contact, after silence, or when asked to. No raw parts.

    `first_sequence` is the oldest chunk it still holds: the server has, or will be sent, everything from there on.
    """

    name: Name
    incarnation: Incarnation
    protocol: Count
    spec_digest: Name
    streams: Annotated[int, Meta(ge=1, le=100_000)]
    first_sequence: Count


class WriterWelcome(Message, frozen=True, tag="writer_welcome"):
    """Replay answers a greeting. No raw parts.

    `connection` differs whenever messages may have been lost in between; the writer then sends again from `next_sequence`.
    """

    server_incarnation: Incarnation
    connection: Count
    next_sequence: Count
    credit_bytes: Count


class Insert(Message, frozen=True, tag="insert"):
    """One chunk. Raw parts: one per large column (compressed as its codec says), then all small columns in one part.

    Where one of these is larger than the frame limit, `sizes` says how large each is, and what travels is all of them in a row,
    cut to the limit.
    """

    sequence: Count
    stream: Annotated[int, Meta(ge=0, le=100_000)]
    length: Annotated[int, Meta(ge=1, le=65_536)]
    crc32: Annotated[int, Meta(ge=0, le=2**32 - 1)]  # over all raw parts in order
    sizes: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()


class Ack(Message, frozen=True, tag="ack"):
    """Every chunk below `next_sequence` is in the segment log and in replay, or drawn, or was refused and counted. No raw parts.

    `policy_version`: what is collected from now on had better be acted under these weights, which the learner has announced; -1
    when it does not matter.
    """

    next_sequence: Count
    policy_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1


class Hold(Message, frozen=True, tag="hold"):
    """Chunks have arrived and wait for the limiter: nothing is lost, nothing to resend. No raw parts."""


class Greet(Message, frozen=True, tag="greet"):
    """The server does not know this peer: it must greet before anything else is taken. No raw parts."""


class Credit(Message, frozen=True, tag="credit"):
    """A writer's share of replay's receive budget is now this. Repeated, to find out who is gone. No raw parts."""

    credit_bytes: Count


class Goodbye(Message, frozen=True, tag="goodbye"):
    """An actor has no more to send: its credit is free for the others. No raw parts."""


class Present(Message, frozen=True, tag="present"):
    """An actor has had nothing to send for a while and is there. No raw parts."""


class Refused(Message, frozen=True, tag="refused"):
    """The server will never serve this peer; the reason is for a person. No raw parts."""

    reason: Text


# ---- batches: learner (DEALER) <-> replay (ROUTER) --------------------------------------------------------------------


class SamplerHello(Message, frozen=True, tag="sampler_hello"):
    """A learner greets. `slab` is where its shared memory can be opened ("" when it shares no host). No raw parts.

    `batch_size` counts transitions, or whole chunks where these are the spec's unit.
    """

    name: Name
    incarnation: Incarnation
    protocol: Count
    spec_digest: Name
    batch_size: Annotated[int, Meta(ge=1, le=1_000_000)]
    slots: Annotated[int, Meta(ge=1, le=64)]
    slab: Text


class SamplerWelcome(Message, frozen=True, tag="sampler_welcome"):
    """Replay answers. `shared` says whether batches will arrive in the slab or as raw parts. No raw parts."""

    server_incarnation: Incarnation
    shared: bool


class SampleRequest(Message, frozen=True, tag="sample_request"):
    """Leases `slot` to replay until it answers with the same `generation`.

    Rollouts whose newest item was acted under an older policy_version than `oldest_version` are dropped. With `priorities` so
    many come along, those of the batch that was in the slot: one raw part, as that of PriorityUpdate. Else no raw parts.
    """

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count
    oldest_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    priorities: Annotated[int, Meta(ge=0, le=1_000_000)] = 0


class Sample(Message, frozen=True, tag="sample"):
    """A batch is in `slot`. Raw parts: none when shared, else the slot's bytes cut to the frame limit."""

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count


class PriorityUpdate(Message, frozen=True, tag="priority_update"):
    """New priorities. One raw part: keys (int64 [count]), then priorities (float32 [count])."""

    count: Annotated[int, Meta(ge=1, le=1_000_000)]


# ---- weights: learner -> everyone who acts ------------------------------------------------------------------------------


class Announce(Message, frozen=True, tag="announce"):
    """The newest weights (XPUB; repeated each second). No raw parts."""

    incarnation: Incarnation
    version: Version
    size_bytes: Count
    sha256: Name


class FetchWeights(Message, frozen=True, tag="fetch_weights"):
    """Asks for the newest weights. No raw parts."""


class Weights(Message, frozen=True, tag="weights"):
    """The newest weights. Raw parts: the payload (safetensors), cut to the frame limit."""

    incarnation: Incarnation
    version: Version
    sha256: Name


# ---- control: every process (DEALER) <-> supervisor (ROUTER) ------------------------------------------------------------


class Progress(Message, frozen=True, tag="progress"):
    """Sent from a process's main loop twice a second, so that a hang is seen. No raw parts.

    `record` is the newest metrics record (empty if there is none since the last message).
    """

    name: Name
    pid: Count
    state: Literal["starting", "ready", "stopping"]
    beats: Count  # turns of the main loop since the start
    record: Annotated[dict[Name, float], Meta(max_length=256)]


class Assignment(Message, frozen=True, tag="assignment"):
    """The supervisor tells an actor its place among the run's environments: how much each explores follows. No raw parts.

    The actor has the environments from `offset` on, of `environments` in all. They take the seeds from `first_seed` on, each
    at the start of its next episode. `level` is that of the run's curriculum, where the environment has one.
    """

    offset: Count
    environments: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    first_seed: Count
    level: Count = 0


class Scale(Message, frozen=True, tag="scale"):
    """`headrace scale` asks the supervisor for this many actors. No raw parts."""

    actors: Annotated[int, Meta(ge=1, le=MOST_ACTORS)]


class Scaling(Message, frozen=True, tag="scaling"):
    """The supervisor answers Scale: it has begun to go from so many actors to so many. No raw parts."""

    before: Count
    actors: Count


class Stop(Message, frozen=True, tag="stop"):
    """The supervisor (or `headrace down`, towards the supervisor) asks for an orderly stop. No raw parts.

    An actor has `drain_seconds` to hand over the experience that it holds.
    """

    reason: Text
    drain_seconds: Annotated[float, Meta(ge=0, le=1e9)] = DRAIN_SECONDS


class Stopping(Message, frozen=True, tag="stopping"):
    """The supervisor answers Stop: it has begun. No raw parts."""


AnyMessage = (
    WriterHello | WriterWelcome | Insert | Ack | Hold | Greet | Credit | Goodbye | Present | Refused
    | SamplerHello | SamplerWelcome | SampleRequest | Sample | PriorityUpdate
    | Announce | FetchWeights | Weights
    | Progress | Assignment | Scale | Scaling | Stop | Stopping
)  # fmt: skip
TYPES: dict[str, type[Message]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyMessage)}


def printable(text: str) -> str:
    """A text of any origin as a Text: what may not be in one becomes a question mark."""
    return re.sub(UNPRINTABLE, "?", text)[:MAX_TEXT]


def pack(message: Message) -> bytes:
    """The header part of a message."""
    return msgspec.msgpack.encode(message)


def unpack(header: bytes) -> Any:
    """Reads a header part under limits. Raises MalformedMessage."""
    if len(header) > MAX_HEADER_BYTES:
        raise MalformedMessage(f"header of {len(header)} bytes")
    try:
        raw = msgpack.unpackb(
            header,
            max_str_len=4096,
            max_bin_len=0,
            max_array_len=1024,
            max_map_len=512,
            max_ext_len=0,
            strict_map_key=True,
        )
        # By its own tag: to read the union anew for every message would take ten times as long.
        kind = raw.get("type") if isinstance(raw, dict) else None
        return msgspec.convert(raw, TYPES[kind] if isinstance(kind, str) and kind in TYPES else AnyMessage)
    except (ValueError, msgspec.ValidationError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"{type(error).__name__}: {error}") from error
