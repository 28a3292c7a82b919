"""The options of proximal policy optimisation."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from learner.algorithms.base import FIXED

LOG_PROB = "log_prob"  # a column: of the action under what it was drawn from; of a greedy one, under the policy


class PpoConfig(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="ppo"):
    """Proximal policy optimisation: each rollout is learned from in a few passes, then forgotten."""

    gamma: Annotated[float, Meta(ge=0, le=1, description="discount per step")] = 0.99
    trace: Annotated[float, Meta(ge=0, le=1, description="lambda: 0 trusts the value function, 1 what was seen")] = 0.95
    clip: Annotated[float, Meta(gt=0, description="a probability ratio further than this from 1 is not rewarded")] = 0.2
    value_clip: Annotated[float, Meta(ge=0, description="values move at most this far per rollout; 0: as they will")] = 0.0
    passes: Annotated[int, Meta(ge=1, description="times that each rollout batch is gone through")] = 10
    minibatches: Annotated[int, Meta(ge=1, description="updates per pass, each on a share of the batch")] = 4
    entropy_coefficient: Annotated[float, Meta(ge=0, description="worth of acting at random")] = 0.0
    value_coefficient: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    normalise_advantage: Annotated[bool, Meta(description="advantages have mean 0 and deviation 1 in each minibatch")] = True
    normalise_observation: Annotated[
        bool, Meta(description="vectors are scaled by their running mean and deviation, which travel with the weights")
    ] = True
    max_kl: Annotated[float, Meta(ge=0, description="no further pass once the policy has moved this far; 0: all passes")] = 0.0
    target_kl: Annotated[
        float,
        Meta(ge=0, description="the learning rate follows, so that each rollout moves the policy about this far; 0: it does not"),
    ] = 0.0
    anneal_steps: Annotated[
        int, Meta(ge=0, description="steps over which learning rate and entropy coefficient fall to their ends; 0: they stay")
    ] = 0
    learning_rate_end: Annotated[float, Meta(ge=0, le=1, description="share of the learning rate that is left at the end")] = 0.0
    entropy_end: Annotated[float, Meta(ge=0, le=1, description="share of the entropy coefficient left at the end")] = 0.0
    clip_rewards: Annotated[
        bool, Meta(description="learn from rewards clipped to -1 … 1; returns are still told as they are")
    ] = False
    reward_scale: Annotated[float, Meta(gt=0, description="rewards are multiplied by this before learning")] = 1.0
    network: Annotated[
        str,
        Meta(description="auto (nature for images, else mlp), nature, mlp, linear, or package.module:Name", extra=FIXED),
    ] = "auto"
    network_options: Annotated[dict[str, Any], Meta(description="options of the network", extra=FIXED)] = {}  # noqa: RUF012
    hidden: Annotated[
        int, Meta(ge=1, description="width of the hidden layers; convolutions are followed by one", extra=FIXED)
    ] = 64
    layers: Annotated[
        int, Meta(ge=1, le=8, description="hidden layers of an MLP; policy and values each have their own", extra=FIXED)
    ] = 2
    log_std: Annotated[float, Meta(ge=-5, le=2, description="log of the first deviation of continuous actions")] = -0.5
