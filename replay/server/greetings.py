"""What a greeting of an actor or a learner must say to be served."""

from __future__ import annotations

from transport.experience import ExperienceSpec
from transport.messages import PROTOCOL, SamplerHello, WriterHello

GREETING = 0.2  # of an offence: one greeting in a while is none


def mismatch(spec: ExperienceSpec, hello: WriterHello | SamplerHello) -> str:
    """Why a client cannot be served; empty when it can."""
    if hello.protocol != PROTOCOL:
        return f"{hello.name} speaks protocol {hello.protocol}, replay speaks {PROTOCOL}: use the same version of headrace"
    if hello.spec_digest != spec.digest:
        return f"{hello.name} was made for another experience spec ({hello.spec_digest}, replay has {spec.digest})"
    return ""
