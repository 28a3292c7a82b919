"""Limits, field types and the base class of all messages, and texts that fit them."""

from __future__ import annotations

import re
from typing import Annotated

from msgspec import Meta, Struct

PROTOCOL = 13
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
MOST_KEYS, MOST_KEY_LINES = 16, 64  # that a person holds at once; that say what keys do
MOST_PIXELS = 640  # height and width of the picture that a person steers by
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
KEY_NAME = r"^(left|right|up|down|space|enter|shift|ctrl|[a-z0-9])\Z"
KeyName = Annotated[str, Meta(pattern=KEY_NAME)]  # of a keyboard
Pixels = Annotated[int, Meta(ge=1, le=MOST_PIXELS)]
ActorName = Annotated[str, Meta(pattern=r"^actor-(0|[1-9][0-9]{0,3})\Z")]


class MalformedMessage(ValueError):
    """The parts that arrived are not a message; the text gives the reason."""


class Message(Struct, frozen=True, forbid_unknown_fields=True):
    """Base class of all headers."""


def printable(text: str) -> str:
    """Makes any text a valid Text: replaces forbidden characters by question marks, and cuts it to MAX_TEXT."""
    return re.sub(UNPRINTABLE, "?", text)[:MAX_TEXT]


def printable_name(text: str) -> str:
    """Makes any text a valid Name: replaces what is not printable ASCII by question marks, and cuts it."""
    return re.sub(r"[^ -~]", "?", text)[:MAX_NAME]
