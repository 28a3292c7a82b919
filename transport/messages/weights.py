"""Weights: learner -> actors and evaluator. Acting: actor (DEALER) <-> the inference process of its machine (ROUTER)."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from transport.messages.fields import MOST_STREAMS, Count, Incarnation, Message, Name, Version


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


# ---- acting: actor (DEALER) <-> the inference process of its machine (ROUTER)


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
