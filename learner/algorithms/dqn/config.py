"""The options of deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from transport.names import CODE, FIXED


class DqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Deep Q-learning (DQN) with double Q-learning, a dueling network and n-step returns, each of which can be switched off."""

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
    ] = 3
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount factor per step")] = 0.99
    clip_rewards: Annotated[bool, Meta(description="train on rewards clipped to [-1, 1]; reported returns are not clipped")] = (
        False
    )
    reward_scale: Annotated[
        float,
        Meta(gt=0, description="rewards are multiplied by this in training; choose it so that Q-values lie between 1 and 30"),
    ] = 1.0
    normalize_reward: Annotated[
        bool,
        Meta(
            description="divide the targets of Q-values by their running magnitude, which is part of the weights, so that "
            "rewards may be of any size; Q-values are shown in units of the reward",
            extra=FIXED,
        ),
    ] = False
    importance_exponent: Annotated[
        float, Meta(ge=0, le=1, description="beta of prioritised replay: 0 does not correct for the sampling, 1 corrects fully")
    ] = 0.4
    target_update_interval: Annotated[
        int, Meta(ge=1, description="updates between two copies of the weights to the target network")
    ] = 1_000
    normalize_observation: Annotated[
        bool,
        Meta(description="normalise vectors by their running mean and deviation, which are part of the weights", extra=FIXED),
    ] = False
    network: Annotated[
        str,
        Meta(
            description="network before the output layer: auto (nature for images, else mlp), nature, nature_batchnorm, "
            "mlp, linear, or package.module:Name for your own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: Annotated[
        dict[str, Any], Meta(description="an option of the network, passed to it by its name", extra=FIXED)
    ] = {}  # noqa: RUF012
    hidden: Annotated[
        int, Meta(ge=1, description="units per hidden layer; nature has one after its convolutions", extra=FIXED)
    ] = 512
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
