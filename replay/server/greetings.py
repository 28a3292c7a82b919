"""Checks of greetings: protocol number and experience spec."""

from __future__ import annotations

from transport.experience import ExperienceSpec
from transport.messages.fields import PROTOCOL
from transport.messages.replay import SamplerHello, WriterHello

GREETING = 0.2  # weight of a greeting as an offence: only many of them in a short time lead to quarantine


def mismatch(spec: ExperienceSpec, hello: WriterHello | SamplerHello) -> str:
    """Why a client cannot be served; "" if it can."""
    if hello.protocol != PROTOCOL:
        return (
            f"{hello.name} uses protocol {hello.protocol}, replay uses {PROTOCOL}: install the same version of headrace for both"
        )
    if hello.spec_digest != spec.digest:
        return (
            f"{hello.name} has another experience spec ({hello.spec_digest}, replay has {spec.digest}): "
            "start both from the same run folder"
        )
    return ""


def other_shards(hello: SamplerHello, shards: int) -> str:
    """Why a learner that expects another number of shards cannot be served; "" if it can."""
    if hello.shards == shards:
        return ""
    return f"{hello.name} was started for {hello.shards} replay shards, here are {shards}: start both from the same run folder"
