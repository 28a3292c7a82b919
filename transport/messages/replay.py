"""Experience: actor (DEALER) -> replay (ROUTER). Batches: learner (DEALER) <-> replay (ROUTER)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from transport.experience import MOST_STARTS, Start
from transport.messages.fields import MOST_ROWS, MOST_SHARDS, MOST_STREAMS, Count, Incarnation, Message, Name, Text


class WriterHello(Message, frozen=True, tag="writer_hello"):
    """An actor greets: on first contact, after silence, or when the server asks for it. No raw parts.

    `first_sequence` is the oldest chunk that the actor still keeps. It can send all chunks from there on again.
    """

    name: Name
    incarnation: Incarnation
    protocol: Count
    spec_digest: Name
    streams: Annotated[int, Meta(ge=1, le=MOST_STREAMS)]
    first_sequence: Count


class WriterWelcome(Message, frozen=True, tag="writer_welcome"):
    """Replay answers a greeting. No raw parts.

    `connection` changes whenever messages may have been lost. The writer then sends again from `next_sequence` on.
    """

    server_incarnation: Incarnation
    connection: Count
    next_sequence: Count
    credit_bytes: Count


class Insert(Message, frozen=True, tag="insert"):
    """One chunk. Raw parts: one per large column (compressed with its codec), then all small columns in one part.

    If one of these parts is larger than the frame limit, all parts are concatenated and cut into pieces of the limit. `sizes`
    then holds the bytes of each part. `starts`: the episodes among its items that began with a seed.
    """

    sequence: Count
    stream: Annotated[int, Meta(ge=0, le=100_000)]
    length: Annotated[int, Meta(ge=1, le=65_536)]
    crc32: Annotated[int, Meta(ge=0, le=2**32 - 1)]  # over all raw parts in order
    sizes: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()
    starts: Annotated[tuple[Start, ...], Meta(max_length=MOST_STARTS)] = ()


class Ack(Message, frozen=True, tag="ack"):
    """Every chunk below `next_sequence` is in the segment log and the table, or was drawn, or was rejected. No raw parts.

    `policy_version`: the weights, announced by the learner, that the actor should use from now on; -1: any weights will do.
    """

    next_sequence: Count
    policy_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1


class Hold(Message, frozen=True, tag="hold"):
    """Chunks or requests have arrived and wait for the limiter. Nothing is lost, so nothing is sent again. No raw parts."""


class Greet(Message, frozen=True, tag="greet"):
    """The server does not know this peer. The peer must greet before the server accepts anything else. No raw parts."""


class Credit(Message, frozen=True, tag="credit"):
    """The bytes of chunks that this writer may have unacknowledged. Sent twice a second, which also detects lost writers. No raw
    parts."""

    credit_bytes: Count


class Goodbye(Message, frozen=True, tag="goodbye"):
    """An actor ends: its credit goes to the others. No raw parts."""


class Present(Message, frozen=True, tag="present"):
    """An actor is alive but has had nothing to send for a while. No raw parts."""


class Refused(Message, frozen=True, tag="refused"):
    """The server will never serve this peer. The reason is shown to the user. No raw parts."""

    reason: Text


# ---- batches: learner (DEALER) <-> replay (ROUTER)


class Counts(Struct, frozen=True, forbid_unknown_fields=True):
    """The counts of the limiter of one of several shards. The learner began to count when the shard had `since` inserts.

    `inserts`: this shard's share of what all shards have inserted from then on. `sampled`: the items that all shards have drawn
    from then on, times that share.
    """

    since: Count
    sampled: Annotated[float, Meta(ge=0)]
    inserts: Annotated[float, Meta(ge=0, le=1)]


class Rows(Struct, frozen=True, forbid_unknown_fields=True):
    """The part of a batch that one of several shards fills. `share`: of the draws that go to this shard; the probabilities of its
    items are multiplied by it."""

    first: Annotated[int, Meta(ge=0, le=MOST_ROWS)]
    count: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    share: Annotated[float, Meta(ge=0, le=1)]
    counts: Counts


class ShardFigures(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of one of several shards, and its counts since a learner began to draw."""

    total: Annotated[float, Meta(ge=0)]  # sum of the raised priorities of its items
    items: Count
    full: bool  # each further insert evicts a chunk
    inserted: Count  # items
    sampled: Count  # items
    under_way: Count  # items that its actors may have sent


class SamplerHello(Message, frozen=True, tag="sampler_hello"):
    """A learner greets. `slab` is the name of its shared memory ("": it runs on another host). No raw parts.

    `batch_size` counts transitions, or whole chunks if the spec's unit is "sequences" or "rollouts". `shards`: how many replay
    processes fill its batches together.
    """

    name: Name
    incarnation: Incarnation
    protocol: Count
    spec_digest: Name
    batch_size: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
    slots: Annotated[int, Meta(ge=1, le=64)]
    slab: Text
    shards: Annotated[int, Meta(ge=1, le=MOST_SHARDS)] = 1


class SamplerWelcome(Message, frozen=True, tag="sampler_welcome"):
    """Replay answers a learner's greeting. `shared`: batches arrive in the slab; otherwise as raw parts. `pid`: the process that
    may write to the slab. No raw parts."""

    server_incarnation: Incarnation
    shared: bool
    pid: Count = 0


class SampleRequest(Message, frozen=True, tag="sample_request"):
    """Leases `slot` to replay until replay answers with the same `generation`.

    Replay drops rollouts whose newest item has a policy_version below `oldest_version`. If `priorities` is above 0, that many
    priorities of the batch that was in the slot come along in one raw part, as in PriorityUpdate; otherwise none do.
    With several shards each fills `rows` of the slot.
    """

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count
    oldest_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    priorities: Annotated[int, Meta(ge=0, le=MOST_ROWS)] = 0
    rows: Rows | None = None


class Sample(Message, frozen=True, tag="sample"):
    """A batch, or one shard's rows of it, is in `slot`. `steps`: the environment steps that this server has collected since it
    was started. `episodes`: how many have ended in them; 0 with rollouts. `figures`: those of one of several shards. Raw parts:
    none with shared memory; otherwise the slot's bytes, or those of a batch of these rows alone, cut to the frame limit."""

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count
    episodes: Count = 0
    figures: ShardFigures | None = None
    steps: Count = 0


class Holding(Message, frozen=True, tag="holding"):
    """One of several shards tells a learner what it holds: after the welcome, then twice a second instead of Hold. No raw
    parts."""

    figures: ShardFigures


class Counted(Message, frozen=True, tag="counted"):
    """The counts for the limiter of a shard that is not requested to fill rows. No raw parts."""

    counts: Counts


class PriorityUpdate(Message, frozen=True, tag="priority_update"):
    """New priorities. One raw part: keys (int64 [count]), then priorities (float32 [count])."""

    count: Annotated[int, Meta(ge=1, le=MOST_ROWS)]
