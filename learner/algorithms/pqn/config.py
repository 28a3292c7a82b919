"""The options of the parallelised Q-network."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from transport.names import CODE, FIXED


class PqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Parallelised Q-network (PQN): Q-learning with lambda returns from rollouts, without replay and target network."""

    gamma: Annotated[float, Meta(ge=0, le=1, description="discount factor per step")] = 0.99
    q_lambda: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="lambda of the returns: 0 bootstraps from the next step, 1 only where a chunk or an episode ends",
        ),
    ] = 0.95
    n_epochs: Annotated[int, Meta(ge=1, description="passes over each rollout batch")] = 4
    minibatches: Annotated[
        int, Meta(ge=1, description="minibatches that each pass splits the rollout batch into; one update each")
    ] = 16
    clip_rewards: Annotated[bool, Meta(description="train on rewards clipped to [-1, 1]; reported returns are not clipped")] = (
        False
    )
    reward_scale: Annotated[
        float,
        Meta(gt=0, description="rewards are multiplied by this in training; choose it so that Q-values lie between 1 and 30"),
    ] = 1.0
    normalize_observation: Annotated[
        bool, Meta(description="normalise vectors by their running mean and deviation, which are part of the weights")
    ] = True
    network: Annotated[
        str,
        Meta(
            description="network before the output layer: auto (nature for images, else mlp), nature, mlp, linear, or "
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
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of an mlp", extra=FIXED)] = 2
    layer_norm: Annotated[
        bool,
        Meta(description="layer normalisation in the built-in networks: it replaces the target network", extra=FIXED),
    ] = True
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
