"""Hosts: the agent on another machine (DEALER) <-> supervisor (ROUTER)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from transport.messages.control import Assignment
from transport.messages.fields import (
    MOST_ACTORS,
    MOST_ENDED,
    MOST_LINES,
    MOST_PLACES,
    MOST_SHARDS,
    ActorName,
    Count,
    Fault,
    Incarnation,
    Key,
    Line,
    Message,
    Name,
    Text,
    Words,
)


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
    """The files of the run's folder that an actor reads, for a host. Raw parts: spec.json, policy.json (empty if there is none),
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
