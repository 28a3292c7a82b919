"""The typed messages. On the wire a message is a header part in MessagePack, then the raw parts that its docstring names.

A header is decoded with msgpack under explicit limits, then converted into its struct, which refuses unknown fields.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

import msgpack
import msgspec
from msgspec import Meta, Struct

PROTOCOL = 11
MAX_HEADER_BYTES = 64 * 1024
MAX_NAME = 64
MAX_PARTS = 4096
MOST_SHARDS = 64  # of the replay of a run
MOST_ROWS = 1_000_000  # of a batch
MOST_ACTORS = MOST_STREAMS = 1024  # of a run; environments of an actor
MOST_PLACES, MOST_ENDED = 128, 8  # of a host; ended actors in one message: a header has room for all of them
FAULT_LETTERS, WORDS_LETTERS = 120, 300  # of what is wrong with an actor, and of its last line
LINE_LETTERS, MOST_LINES = 1000, 12  # of a line, and of lines, in one message
MOST_FIGURES = 256  # of a metrics record
LOOK_BYTES, LOOK_FIGURES = 3 << 20, 256  # of observations, and of figures for actions, that Seen has at most
DRAIN_SECONDS = 2.0  # for an actor to send its remaining experience when the run stops

Count = Annotated[int, Meta(ge=0, le=2**62)]
Incarnation = Annotated[int, Meta(ge=0, le=2**63 - 1)]  # random at each start of a process
Version = Annotated[int, Meta(ge=0, le=2**31 - 1)]  # fits the int32 column policy_version
# Names and texts from peers are printed on terminals: no control characters, nothing that reverses the reading direction.
Name = Annotated[str, Meta(max_length=MAX_NAME, pattern=r"^[ -~]*\Z")]
UNPRINTABLE = r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
MAX_TEXT = 4096
PRINTABLE = rf"^(?!.*{UNPRINTABLE})[^\n]*\Z"
Text = Annotated[str, Meta(max_length=MAX_TEXT, pattern=PRINTABLE)]
Line = Annotated[str, Meta(max_length=LINE_LETTERS, pattern=PRINTABLE)]
Fault = Annotated[str, Meta(max_length=FAULT_LETTERS, pattern=PRINTABLE)]
Words = Annotated[str, Meta(max_length=WORDS_LETTERS, pattern=PRINTABLE)]

Key = Annotated[str, Meta(pattern=r"^[!-~]{40}\Z")]  # a public key in Z85
ActorName = Annotated[str, Meta(pattern=r"^actor-(0|[1-9][0-9]{0,3})\Z")]


class MalformedMessage(ValueError):
    """The parts that arrived are not a message; the text gives the reason."""


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of all headers."""


# ---- experience: actor (DEALER) -> replay (ROUTER) --------------------------------------------------------------------


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
    then holds the bytes of each part.
    """

    sequence: Count
    stream: Annotated[int, Meta(ge=0, le=100_000)]
    length: Annotated[int, Meta(ge=1, le=65_536)]
    crc32: Annotated[int, Meta(ge=0, le=2**32 - 1)]  # over all raw parts in order
    sizes: Annotated[tuple[Count, ...], Meta(max_length=256)] = ()


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
    """A writer's share of replay's receive budget. Sent twice a second, which also detects lost writers. No raw parts."""

    credit_bytes: Count


class Goodbye(Message, frozen=True, tag="goodbye"):
    """An actor ends: its credit goes to the others. No raw parts."""


class Present(Message, frozen=True, tag="present"):
    """An actor is alive but has had nothing to send for a while. No raw parts."""


class Refused(Message, frozen=True, tag="refused"):
    """The server will never serve this peer. The reason is shown to the user. No raw parts."""

    reason: Text


# ---- batches: learner (DEALER) <-> replay (ROUTER) --------------------------------------------------------------------


class Counts(Struct, frozen=True, forbid_unknown_fields=True):
    """What the limiter of one of several shards is to count. The learner began to count when the shard had `since` inserts.

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
    """What one of several shards holds, and what it has done since a learner began to draw."""

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
    """Replay answers a learner's greeting. `shared`: batches arrive in the slab; else as raw parts. `pid`: of the process that
    may write to the slab. No raw parts."""

    server_incarnation: Incarnation
    shared: bool
    pid: Count = 0


class SampleRequest(Message, frozen=True, tag="sample_request"):
    """Leases `slot` to replay until replay answers with the same `generation`.

    Replay drops rollouts whose newest item has a policy_version below `oldest_version`. If `priorities` is above 0, that many
    priorities of the batch that was in the slot come along in one raw part, as in PriorityUpdate. Else no raw parts. With several
    shards each fills `rows` of the slot.
    """

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count
    oldest_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)] = -1
    priorities: Annotated[int, Meta(ge=0, le=MOST_ROWS)] = 0
    rows: Rows | None = None


class Sample(Message, frozen=True, tag="sample"):
    """A batch, or one shard's rows of it, is in `slot`. `episodes`: how many have ended in the steps that this server has
    collected; 0 with rollouts. `figures`: those of one of several shards. Raw parts: none with shared memory, else the slot's
    bytes, or those of a batch of these rows alone, cut to the frame limit."""

    slot: Annotated[int, Meta(ge=0, le=64)]
    generation: Count
    episodes: Count = 0
    figures: ShardFigures | None = None


class Holding(Message, frozen=True, tag="holding"):
    """One of several shards tells a learner what it holds: after the welcome, then twice a second instead of Hold. No raw
    parts."""

    figures: ShardFigures


class Counted(Message, frozen=True, tag="counted"):
    """What the limiter of one of several shards is to count, where it is not requested to fill rows. No raw parts."""

    counts: Counts


class PriorityUpdate(Message, frozen=True, tag="priority_update"):
    """New priorities. One raw part: keys (int64 [count]), then priorities (float32 [count])."""

    count: Annotated[int, Meta(ge=1, le=MOST_ROWS)]


# ---- weights: learner -> actors and evaluator ---------------------------------------------------------------------------


class Announce(Message, frozen=True, tag="announce"):
    """The newest weights (XPUB; repeated each second). No raw parts."""

    incarnation: Incarnation
    version: Version
    size_bytes: Count
    sha256: Name


class FetchWeights(Message, frozen=True, tag="fetch_weights"):
    """Requests the newest weights. No raw parts."""


class Weights(Message, frozen=True, tag="weights"):
    """The newest weights. Raw parts: the payload (safetensors), cut to the frame limit."""

    incarnation: Incarnation
    version: Version
    sha256: Name


# ---- acting: actor (DEALER) <-> the inference process of its machine (ROUTER) ------------------------------------------


class Infer(Message, frozen=True, tag="infer"):
    """An actor asks for the network's outputs for `count` environments. Repeated under the same `number` until it is answered.

    Raw parts: the stacked observation of each field of the spec [count, stack, *shape], then each array of the recurrent state
    [count, *shape] float32, in the order of the policy's description. With a count of 0, which asks for the version alone, none.
    """

    number: Count
    count: Annotated[int, Meta(ge=0, le=MOST_STREAMS)]


class Inferred(Message, frozen=True, tag="inferred"):
    """Answers the Infer of this number, by the weights of `version`; `newest` is the highest that the learner has announced.

    Raw parts: the outputs [count, n] float32, then the next recurrent state as in Infer. None for a count of 0.
    """

    number: Count
    version: Version
    newest: Version


# ---- control: every process (DEALER) <-> supervisor (ROUTER) ------------------------------------------------------------


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """What has become of the Order with this number; `text` is for the operator."""

    number: Incarnation
    done: bool
    text: Text


class Progress(Message, frozen=True, tag="progress"):
    """Sent from a process's main loop twice a second, so that the supervisor notices a hang. No raw parts.

    `record` is the newest metrics record; empty if there is none since the last message. A process that is `resting` does nothing
    because the run is paused. `answer` is the newest one; it is repeated, so that none is lost.
    """

    name: Name
    incarnation: Incarnation
    state: Literal["starting", "ready", "stopping"]
    beats: Count  # iterations of the main loop since the start
    record: Annotated[dict[Name, float], Meta(max_length=MOST_FIGURES)]
    steps: Count = 0  # of environments: collected by replay, or an actor's that replay has acknowledged; 0 from others
    restored_steps: Count = 0  # of these, collected by earlier incarnations
    resting: bool = False
    answer: Answer | None = None


class Assignment(Message, frozen=True, tag="assignment"):
    """The supervisor assigns an actor its indices among the run's environments; exploration depends on them. No raw parts.

    The actor runs the environments from `offset` on, of `environments` in all. Each takes its seed, counted from `first_seed`,
    at the start of its next episode. `level` is the level of the run's curriculum, if the environment has one.
    """

    offset: Count
    environments: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    first_seed: Count
    level: Count = 0


class Allowance(Message, frozen=True, tag="allowance"):
    """The supervisor answers the Progress of an actor whose run has a planned number of steps. No raw parts.

    The actor waits when it has taken `steps` steps since its start, until it is allowed more.
    """

    steps: Count


class Scale(Message, frozen=True, tag="scale"):
    """`headrace scale` requests this number of actors from the supervisor. No raw parts."""

    actors: Annotated[int, Meta(ge=1, le=MOST_ACTORS)]


class Scaling(Message, frozen=True, tag="scaling"):
    """The supervisor answers Scale: it changes the number of actors from `before` to `actors`. No raw parts."""

    before: Count
    actors: Count


What = Literal["pause", "unpause", "checkpoint", "evaluate"]


class Order(Message, frozen=True, tag="order"):
    """What an operator wants of a run that is up. No raw parts.

    The operator repeats it while the Outcome is `waiting`. By its random `number` it is carried out once. The supervisor sends
    `pause` and `unpause` to every process whose `resting` differs, `checkpoint` to the learner and `evaluate` to the evaluator;
    these two answer in Progress.
    """

    what: What
    number: Incarnation


class Outcome(Message, frozen=True, tag="outcome"):
    """The supervisor answers an Order: what has become of it so far. No raw parts."""

    result: Literal["waiting", "done", "failed", "refused"]
    text: Text


class Look(Message, frozen=True, tag="look"):
    """An operator asks what an actor sees now. The supervisor passes it on to the actor. No raw parts."""

    actor: ActorName
    number: Incarnation


class Seen(Message, frozen=True, tag="seen"):
    """An actor answers Look: what the policy is about to act on in the first environment. The supervisor passes it on.

    `figures`: the policy's figures for the first actions, such as their values; not finite where an action is forbidden; none if
    the policy gives none. `kind` says what they are. `step` and `total_reward` are those of the episode so far. Raw parts: the
    stacked observation, cut to the frame limit: the bytes of each field that networks see, in the order of the spec. None if that
    is more than LOOK_BYTES.
    """

    actor: ActorName
    number: Incarnation
    policy_version: Annotated[int, Meta(ge=-1, le=2**31 - 1)]
    step: Count
    total_reward: float
    kind: Name = ""
    figures: Annotated[tuple[float, ...], Meta(max_length=LOOK_FIGURES)] = ()
    actions: Annotated[tuple[Name, ...], Meta(max_length=LOOK_FIGURES)] = ()  # names; none if the environment gives none
    bounds: tuple[float, float] | None = None  # between which figures lie; None: anywhere


class Stop(Message, frozen=True, tag="stop"):
    """Requests an orderly stop: from the supervisor to a process, or from `headrace down` to the supervisor. No raw parts.

    An actor has `drain_seconds` to send its remaining experience, and the evaluator `finishing_seconds` to evaluate the last
    weights.
    """

    reason: Text
    drain_seconds: Annotated[float, Meta(ge=0, le=1e9)] = DRAIN_SECONDS
    finishing_seconds: Annotated[float, Meta(ge=0, le=1e9)] = 0.0


class Stopping(Message, frozen=True, tag="stopping"):
    """The run is being stopped. The supervisor answers Stop with it, and sends it to replay, which from then on inserts chunks
    without waiting for the learner. No raw parts."""


# ---- hosts: the agent on another machine (DEALER) <-> supervisor (ROUTER) ------------------------------------------------


class Enrol(Message, frozen=True, tag="enrol"):
    """The owner of ticket-3 asks the supervisor to put `public`, a key that it has made, on the list as the key of host-3. With a
    shared ticket the supervisor chooses a free name. Sent again until there is an answer. No raw parts."""

    protocol: Count
    public: Key


class Enrolled(Message, frozen=True, tag="enrolled"):
    """The supervisor answers Enrol: the key is on the list under `name`; one before it is refused from now on. No raw parts."""

    name: Name


class Begun(Struct, frozen=True, forbid_unknown_fields=True):
    """An actor that runs on a host. `public`: the key that the host has made for this incarnation."""

    name: ActorName
    incarnation: Incarnation
    public: Key
    pid: Count
    fault: Fault = ""  # why it must be replaced
    rss_bytes: Count | None = None
    cpu_percent: float | None = None


class Ended(Struct, frozen=True, forbid_unknown_fields=True):
    """How an actor on a host has ended, as deploy/places/base.py has it."""

    incarnation: Incarnation
    code: Annotated[int, Meta(ge=-(2**31), le=2**32)]
    last_words: Words = ""
    out_of_memory: bool = False
    explained: bool = False


class HostServer(Struct, frozen=True, forbid_unknown_fields=True):
    """A process of a host that serves its actors: the relay of the weights, or the inference process. `pid` is 0 while it is
    being started again."""

    role: Literal["relay", "inference"]
    pid: Count
    restarts: Count
    last_exit: Words = ""
    rss_bytes: Count | None = None
    cpu_percent: float | None = None


class HostHello(Message, frozen=True, tag="host_hello"):
    """The whole state of a host, each second and at each change; so nothing is lost with a message. No raw parts.

    `folder`: the digest of the Folder that it has. `ended` repeats an end until HostWelcome names it. A host that is `leaving`
    takes no more actors, and those that end have left with it.
    """

    name: Name
    incarnation: Incarnation
    protocol: Count
    places: Annotated[int, Meta(ge=1, le=MOST_PLACES)]
    folder: Name
    running: Annotated[tuple[Begun, ...], Meta(max_length=MOST_PLACES)]
    ended: Annotated[tuple[Ended, ...], Meta(max_length=MOST_ENDED)] = ()
    leaving: bool = False
    servers: Annotated[tuple[HostServer, ...], Meta(max_length=2)] = ()


class HostWelcome(Message, frozen=True, tag="host_welcome"):
    """The supervisor answers each HostHello: it has taken these ends. Without an answer the host is alone. No raw parts."""

    ended: Annotated[tuple[Incarnation, ...], Meta(max_length=MOST_ENDED)] = ()


class Folder(Message, frozen=True, tag="folder"):
    """What an actor reads in the run's folder, for a host. Raw parts: spec.json, policy.json (empty if there is none),
    settings/transport.json, and the settings of an actor."""

    digest: Name
    run: Name
    endpoints: Annotated[dict[Name, Text], Meta(max_length=MOST_SHARDS + 3)]
    public_keys: Annotated[dict[Name, Key], Meta(max_length=16)]  # of the servers
    memory_bytes: Count  # of an actor; 0: no limit
    orphan_seconds: Annotated[float, Meta(gt=0, le=1e9)]


class Begin(Message, frozen=True, tag="begin"):
    """The supervisor asks a host to start a process of this role; the host knows the command. No raw parts."""

    role: Literal["actor"]
    index: Annotated[int, Meta(ge=0, lt=MOST_ACTORS)]
    incarnation: Incarnation
    threads: Annotated[int, Meta(ge=1, le=1024)]
    assignment: Assignment


class End(Message, frozen=True, tag="end"):
    """The supervisor asks a host to end a process: to `kill` it, or to ask it. No raw parts."""

    incarnation: Incarnation
    kill: bool


class Said(Message, frozen=True, tag="said"):
    """Lines that a process on a host, or the host itself, has printed. No raw parts."""

    host: Name
    name: Name
    lines: Annotated[tuple[Line, ...], Meta(max_length=MOST_LINES)]


TYPES: dict[str, type[Message]] = {str(kind.__struct_config__.tag): kind for kind in Message.__subclasses__()}


def printable(text: str) -> str:
    """Makes any text a valid Text: replaces forbidden characters by question marks, and cuts it to MAX_TEXT."""
    return re.sub(UNPRINTABLE, "?", text)[:MAX_TEXT]


def printable_name(text: str) -> str:
    """Makes any text a valid Name: replaces what is not printable ASCII by question marks, and cuts it."""
    return re.sub(r"[^ -~]", "?", text)[:MAX_NAME]


def pack(message: Message) -> bytes:
    """Encodes the header part of a message."""
    return msgspec.msgpack.encode(message)


def unpack(header: bytes) -> Any:
    """Decodes a header part under limits. Raises MalformedMessage."""
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
        # The tag gives the type: converting into a union of all types takes ten times as long.
        kind = raw.get("type") if isinstance(raw, dict) else None
        if not isinstance(kind, str) or kind not in TYPES:
            raise ValueError("its type is missing or unknown")
        return msgspec.convert(raw, TYPES[kind])
    except (ValueError, msgspec.ValidationError, msgpack.exceptions.UnpackException, RecursionError) as error:
        raise MalformedMessage(f"{type(error).__name__}: {error}") from error
