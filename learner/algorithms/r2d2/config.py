"""The options of recurrent deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from transport.names import CODE, FIXED


class R2d2Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Recurrent deep Q-learning (R2D2): Q-learning with a memory, for environments that hide something, from whole sequences."""

    memory: Annotated[
        Literal["lstm", "gru"], Meta(description="what remembers, between network and output layer", extra=FIXED)
    ] = "lstm"
    memory_width: Annotated[int, Meta(ge=1, description="units of the memory", extra=FIXED)] = 64
    burn_in: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="steps before each sequence that only bring the recorded state of the memory up to date with the "
            "present weights",
            extra=FIXED,
        ),
    ] = 16
    value_rescaling: Annotated[
        bool,
        Meta(
            description="learn Q-values on a scale on which large ones grow like a square root, so that rewards need no clipping",
            extra=FIXED,
        ),
    ] = True
    double: Annotated[
        bool, Meta(description="double Q-learning: the online network chooses the next action, the target network evaluates it")
    ] = True
    dueling: Annotated[
        bool,
        Meta(
            description="dueling network: separate outputs for the value of a state and the advantages of its actions",
            extra=FIXED,
        ),
    ] = True
    n_step: Annotated[
        int, Meta(ge=1, le=64, description="n of n-step returns: rewards summed before bootstrapping", extra=FIXED)
    ] = 5
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount factor per step")] = 0.997
    clip_rewards: Annotated[bool, Meta(description="train on rewards clipped to [-1, 1]; reported returns are not clipped")] = (
        False
    )
    reward_scale: Annotated[float, Meta(gt=0, description="rewards are multiplied by this in training")] = 1.0
    importance_exponent: Annotated[
        float, Meta(ge=0, le=1, description="beta of prioritised replay: 0 does not correct for the sampling, 1 corrects fully")
    ] = 0.6
    target_update_interval: Annotated[
        int, Meta(ge=1, description="updates between two copies of the weights to the target network")
    ] = 200
    network: Annotated[
        str,
        Meta(
            description="network before the memory: auto (nature for images, else mlp), nature, mlp, linear, or "
            "package.module:Name for your own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: Annotated[
        dict[str, Any], Meta(description="an option of the network, passed to it by its name", extra=FIXED)
    ] = {}  # noqa: RUF012
    hidden: Annotated[
        int, Meta(ge=1, description="units per hidden layer; nature has one after its convolutions", extra=FIXED)
    ] = 128
    epsilon_base: Annotated[
        float, Meta(ge=0, le=1, description="probability of a random action in the environment that explores most")
    ] = 0.4
    epsilon_power: Annotated[
        float,
        Meta(
            ge=0,
            description="the environment that explores least acts randomly with probability epsilon_base ** (1 + "
            "epsilon_power); the others lie between",
        ),
    ] = 7.0
