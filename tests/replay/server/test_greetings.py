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


@pytest.mark.parametrize("hello", HELLOS)
def test_a_client_of_the_same_protocol_and_spec_is_served(hello: WriterHello | SamplerHello) -> None:
    assert mismatch(SPEC, hello, 1) == ""


@pytest.mark.parametrize("hello", HELLOS)
@pytest.mark.parametrize("protocol", [PROTOCOL - 1, PROTOCOL + 1])
def test_another_protocol_is_refused_in_one_line_that_says_what_to_do(hello: WriterHello | SamplerHello, protocol: int) -> None:
    reason = mismatch(SPEC, msgspec.structs.replace(hello, protocol=protocol), 1)
    assert f"{hello.name} uses protocol {protocol}, replay uses {PROTOCOL}" in reason
    assert "install the same version" in reason and "\n" not in reason


@pytest.mark.parametrize("hello", HELLOS)
def test_another_spec_is_refused_in_one_line_that_says_what_to_do(hello: WriterHello | SamplerHello) -> None:
    reason = mismatch(make_spec(length=16), hello, 1)
    assert SPEC.digest in reason and "start both from the same run folder" in reason and "\n" not in reason
