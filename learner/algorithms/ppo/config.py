"""The options of proximal policy optimisation."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from learner.algorithms.base import FIXED

LOG_PROB = "log_prob"  # a column: of the action under what it was drawn from; of a greedy one, under the policy


class PpoConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Proximal policy optimisation: learns from each rollout in a few passes, then drops it."""

    gamma: Annotated[float, Meta(ge=0, le=1, description="discount per step")] = 0.99
    gae_lambda: Annotated[
        float,
        Meta(ge=0, le=1, description="lambda of GAE: 0 trusts the value function, 1 the rewards that were seen"),
    ] = 0.95
    clip_range: Annotated[float, Meta(gt=0, description="a probability ratio further than this from 1 is not rewarded")] = 0.2
    clip_range_vf: Annotated[float, Meta(ge=0, description="values move at most this far per rollout; 0: no limit")] = 0.0
    n_epochs: Annotated[int, Meta(ge=1, description="passes over each rollout batch")] = 10
    minibatches: Annotated[int, Meta(ge=1, description="updates per pass, each on a share of the batch")] = 4
    ent_coef: Annotated[float, Meta(ge=0, description="weight of the policy's entropy, which keeps it exploring")] = 0.0
    vf_coef: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    normalize_advantage: Annotated[bool, Meta(description="advantages have mean 0 and deviation 1 in each minibatch")] = True
    normalize_observation: Annotated[
        bool, Meta(description="vectors are scaled by their running mean and deviation, which travel with the weights")
    ] = True
    target_kl: Annotated[
        float, Meta(ge=0, description="no further pass once the policy has moved so far (KL divergence); 0: all")
    ] = 0.0
    adaptive_kl: Annotated[
        float,
        Meta(
            ge=0,
            description="adapt the learning rate so that each rollout moves the policy this far (KL divergence); 0: do not",
        ),
    ] = 0.0
    anneal_steps: Annotated[
        int, Meta(ge=0, description="steps over which learning rate and entropy coefficient fall to their ends; 0: they stay")
    ] = 0
    learning_rate_end: Annotated[float, Meta(ge=0, le=1, description="share of the learning rate that is left at the end")] = 0.0
    ent_coef_end: Annotated[float, Meta(ge=0, le=1, description="share of the entropy coefficient left at the end")] = 0.0
    clip_rewards: Annotated[bool, Meta(description="learn from rewards clipped to -1 … 1; reported returns stay as they are")] = (
        False
    )
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
    log_std_init: Annotated[float, Meta(ge=-5, le=2, description="log of the first deviation of continuous actions")] = -0.5
