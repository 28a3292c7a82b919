"""Control: every process (DEALER) <-> supervisor (ROUTER)."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from transport.messages.fields import (
    DRAIN_SECONDS,
    LOOK_FIGURES,
    MOST_ACTORS,
    MOST_FIGURES,
    MOST_KEY_LINES,
    MOST_KEYS,
    ActorName,
    Count,
    Incarnation,
    KeyName,
    Message,
    Name,
    Pixels,
    Text,
    Words,
)


class Answer(Struct, frozen=True, forbid_unknown_fields=True):
    """The result of the Order with this number; `text` is for the operator."""

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


STEER_SECONDS = 1.0  # without a sign of the person, after which an actor goes on by itself

What = Literal["pause", "unpause", "checkpoint", "evaluate"]


class Order(Message, frozen=True, tag="order"):
    """An operator steers a run that is up. No raw parts.

    The operator repeats it while the outcome is `waiting`. By its random `number` it is carried out once. The supervisor sends
    `pause` and `unpause` to every process whose `resting` differs, `checkpoint` to the learner and `evaluate` to the evaluator;
    these two answer in Progress.
    """

    what: What
    number: Incarnation


class OrderOutcome(Message, frozen=True, tag="outcome"):
    """The supervisor answers an Order with its result so far. No raw parts."""

    result: Literal["waiting", "done", "failed", "refused"]
    text: Text


class Look(Message, frozen=True, tag="look"):
    """An operator asks what an actor sees now. The supervisor passes it on to the actor. No raw parts."""

    actor: ActorName
    number: Incarnation


class Steer(Message, frozen=True, tag="steer"):
    """A person chooses the actions of an actor's first environment. The supervisor passes it on, for one person at a time. No
    raw parts.

    The person's page sends it again after each answer. An actor that gets none for STEER_SECONDS goes on by itself.
    """

    actor: ActorName
    number: Incarnation
    person: Incarnation  # a random number of the page
    keys: Annotated[tuple[KeyName, ...], Meta(max_length=MOST_KEYS)] = ()  # that are held
    ends: bool = False  # hands back


class Seen(Message, frozen=True, tag="seen"):
    """An actor answers Look or Steer: what is about to be acted on in the first environment. The supervisor passes it on.

    `figures`: the policy's figures for the first actions, such as their values; not finite where an action is forbidden; none if
    the policy gives none. `kind` says what they are. `step` and `total_reward` are those of the episode so far. Raw parts: the
    stacked observation, cut to the frame limit: the bytes of each field that networks see, in the order of the spec. None if that
    is more than LOOK_BYTES. Then those of a `picture`, [H, W, 3] RGB, where a person steers.
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
    steered: bool = False  # by a person
    keys: Annotated[tuple[Words, ...], Meta(max_length=MOST_KEY_LINES)] = ()  # what they do, a line for each; while it is steered
    picture: tuple[Pixels, Pixels] | None = None  # H, W; None where the environment draws none
    refused: Text = ""  # why nobody can steer it, where a person wants to


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
