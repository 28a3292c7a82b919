"""Greetings of clients that replay must not serve."""

from __future__ import annotations

import msgspec
import pytest

from replay.server.server import mismatch
from tests.replay.examples import make_spec
from transport.messages.fields import PROTOCOL
from transport.messages.replay import SamplerHello, WriterHello

SPEC = make_spec()
HELLOS = (
    WriterHello("actor-0", 1, PROTOCOL, SPEC.digest, 1, 0),
    SamplerHello("learner", 1, PROTOCOL, SPEC.digest, 8, 2, ""),
)


OTHER_PROTOCOL = f"uses protocol {{}}, replay uses {PROTOCOL}: install the same version of headrace for both"
OTHER_SPEC = f"has another experience spec (other, replay has {SPEC.digest}): start both from the same run folder"


@pytest.mark.parametrize("hello", HELLOS)
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, ""),
        ({"protocol": PROTOCOL - 1}, OTHER_PROTOCOL.format(PROTOCOL - 1)),
        ({"protocol": PROTOCOL + 1}, OTHER_PROTOCOL.format(PROTOCOL + 1)),
        ({"spec_digest": "other"}, OTHER_SPEC),
    ],
)
def test_a_client_of_another_protocol_or_spec_is_refused_in_one_line_that_says_what_to_do(
    hello: WriterHello | SamplerHello, change: dict[str, object], reason: str
) -> None:
    assert mismatch(SPEC, msgspec.structs.replace(hello, **change), 1).removeprefix(f"{hello.name} ") == reason
