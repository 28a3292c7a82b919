"""Options that several algorithms have: their types, bounds and descriptions. Each algorithm has its own defaults."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from transport.names import CODE, FIXED

Gamma = Annotated[float, Meta(ge=0, le=1, description="discount factor per step")]
NStep = Annotated[int, Meta(ge=1, le=64, description="n of n-step returns: rewards summed before bootstrapping", extra=FIXED)]
ClipRewards = Annotated[bool, Meta(description="train on rewards clipped to [-1, 1]; reported returns are not clipped")]
RewardScale = Annotated[float, Meta(gt=0, description="rewards are multiplied by this in training")]
RewardScaleOfQ = Annotated[
    float, Meta(gt=0, description="rewards are multiplied by this in training; choose it so that Q-values lie between 1 and 30")
]
NormalizeReward = Annotated[
    bool,
    Meta(
        description="divide the targets of Q-values by their running magnitude, which is part of the weights, so that "
        "rewards may be of any size; Q-values are shown in units of the reward",
        extra=FIXED,
    ),
]
_NORMALIZE_OBSERVATION = "normalise vectors by their running mean and deviation, which are part of the weights"
NormalizeObservation = Annotated[bool, Meta(description=_NORMALIZE_OBSERVATION)]
NormalizeObservationFixed = Annotated[bool, Meta(description=_NORMALIZE_OBSERVATION, extra=FIXED)]
Double = Annotated[
    bool, Meta(description="double Q-learning: the online network chooses the next action, the target network evaluates it")
]
Dueling = Annotated[
    bool,
    Meta(
        description="dueling network: separate outputs for the value of a state and the advantages of its actions",
        extra=FIXED,
    ),
]
ImportanceExponent = Annotated[
    float, Meta(ge=0, le=1, description="beta of prioritised replay: 0 does not correct for the sampling, 1 corrects fully")
]
TargetUpdateInterval = Annotated[int, Meta(ge=1, description="updates between two copies of the weights to the target network")]
NEpochs = Annotated[int, Meta(ge=1, description="passes over each rollout batch")]
Minibatches = Annotated[
    int,
    Meta(
        ge=1,
        description="minibatches that each pass splits the rollout batch into, one update each; more where the batch must grow "
        "for the number of environments",
    ),
]
Network = Annotated[
    str,
    Meta(
        description="network before the output layer: auto (nature for images, mlp elsewhere), nature, compact, mlp, linear, or "
        "package.module:Name for your own",
        extra=FIXED | CODE,
    ),
]
NetworkOptions = Annotated[dict[str, Any], Meta(description="an option of the network, passed to it by its name", extra=FIXED)]
Filters = Annotated[
    float,
    Meta(
        gt=0,
        description="nature, compact: factor of the number of filters of each layer; with 0.5 an update of nature takes a third "
        "of the time",
        extra=FIXED,
    ),
]
Hidden = Annotated[int, Meta(ge=1, description="units per hidden layer; nature has one after its convolutions", extra=FIXED)]
MemoryWidth = Annotated[int, Meta(ge=1, description="units of the memory", extra=FIXED)]
EpsilonBase = Annotated[
    float, Meta(ge=0, le=1, description="probability of a random action in the environment that explores most")
]
EpsilonPower = Annotated[
    float,
    Meta(
        ge=0,
        description="the environment that explores least acts randomly with probability epsilon_base ** (1 + "
        "epsilon_power); the others lie between",
    ),
]
