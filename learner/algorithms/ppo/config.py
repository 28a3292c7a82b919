"""The options of proximal policy optimisation."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import FIXED

LOG_PROB = "log_prob"  # a column: log-probability of the action under the policy that acted
LEAST_SHARE = 0.1  # of a rollout in the running scale of values: there are few rollouts
# Root mean square of scaled values where the learning rate is fixed. Gradients of policy and value function are clipped together,
# so larger values would leave the policy a gradient of almost 0. adaptive_kl makes up for that by a higher learning rate.
SMALL_MAGNITUDE = 1.0
GREATEST_LOG_RATIO = 20.0  # clips log-ratios, so that ratios cannot overflow


class PpoConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Proximal policy optimisation (PPO): trains on each rollout batch in a few passes, then drops it."""

    gamma: options.Gamma = 0.99
    gae_lambda: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="lambda of generalized advantage estimation: 0 relies on the value function, 1 on the rewards received",
        ),
    ] = 0.95
    clip_range: Annotated[
        float, Meta(gt=0, description="the policy gains nothing from a probability ratio that differs from 1 by more than this")
    ] = 0.2
    clip_range_vf: Annotated[
        float, Meta(ge=0, description="a predicted value may change by at most this much per rollout batch; 0 means no limit")
    ] = 0.0
    n_epochs: options.NEpochs = 10
    minibatches: options.Minibatches = 4
    ent_coef: Annotated[
        float, Meta(ge=0, description="weight of the entropy in the loss; raise it when the policy stops exploring too early")
    ] = 0.0
    vf_coef: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    normalize_advantage: Annotated[bool, Meta(description="normalise advantages to mean 0 and deviation 1 in each minibatch")] = (
        True
    )
    normalize_observation: options.NormalizeObservation = True
    target_kl: Annotated[
        float,
        Meta(
            ge=0,
            description="skip the remaining passes over a rollout batch once the KL divergence from the policy before "
            "it exceeds this; 0 means never",
        ),
    ] = 0.0
    adaptive_kl: Annotated[
        float,
        Meta(
            ge=0,
            description="adapt the learning rate so that each rollout batch changes the policy by this KL divergence; 0 "
            "means a fixed rate",
        ),
    ] = 0.0
    anneal_steps: Annotated[
        int,
        Meta(
            ge=0,
            description="environment steps over which learning rate and entropy weight fall linearly; 0 means that they "
            "stay constant",
        ),
    ] = 0
    learning_rate_end: Annotated[
        float, Meta(ge=0, le=1, description="share of the learning rate that is left after anneal_steps")
    ] = 0.0
    ent_coef_end: Annotated[
        float, Meta(ge=0, le=1, description="share of the entropy weight that is left after anneal_steps")
    ] = 0.0
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScale = 1.0
    normalize_reward: Annotated[
        bool,
        Meta(
            description="divide the targets of values by their running magnitude, so that rewards may be of any size",
            extra=FIXED,
        ),
    ] = False
    network: options.Network = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 64
    filters: options.Filters = 1.0
    layers: Annotated[
        int,
        Meta(
            ge=1,
            le=8,
            description="hidden layers of an mlp; policy and value function each have their own unless they share them",
            extra=FIXED,
        ),
    ] = 2
    memory: Annotated[
        Literal["", "lstm", "gru"],
        Meta(
            description="recurrent layer between network and output layer, for partially observable environments: lstm, gru, or "
            "empty for none. With one, a minibatch has whole chunks, at least eight of them",
            extra=FIXED,
        ),
    ] = ""
    memory_width: options.MemoryWidth = 64
    shared: Annotated[
        bool,
        Meta(
            description="policy and value function share the hidden layers, as they always do with nature, compact and a memory: "
            "an update takes half of the time",
            extra=FIXED,
        ),
    ] = False
    log_std_init: Annotated[float, Meta(ge=-5, le=2, description="initial log standard deviation of continuous actions")] = -0.5
    log_std_min: Annotated[
        float,
        Meta(
            ge=-5,
            le=2,
            description="lowest log standard deviation of continuous actions: with too little noise nothing new is tried, and "
            "each update changes the policy more",
        ),
    ] = -2.5
    noise_exponent: Annotated[
        float,
        Meta(
            ge=0,
            le=2,
            description="how slowly the noise of exploration changes: its power falls with the frequency f as f ** "
            "-noise_exponent. 0 is independent noise at every step, 1 pink noise, 2 red noise; it finds distant rewards, and "
            "often learns less where rewards are near",
        ),
    ] = 0.0

    @property
    def body(self) -> BodyOptions:
        """The body of the policy; the value function may have such a torso of its own: see networks.py."""
        images = {"width": self.hidden, "filters": self.filters}
        layered = {"width": self.hidden, "layers": self.layers, "activation": "tanh"}
        built_in: dict[str, dict[str, Any]] = {"nature": images, "compact": images, "mlp": layered, "linear": {}}
        options, normalise = self.network_options, self.normalize_observation
        return BodyOptions(self.network, options, built_in, True, normalise, self.memory, self.memory_width)
