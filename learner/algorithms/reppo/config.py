"""The options of relative entropy pathwise policy optimisation."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.algorithms.reppo.bins import BINS
from learner.networks.known.torsos import BodyOptions
from transport.names import CODE, FIXED


class ReppoConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Relative entropy pathwise policy optimisation (REPPO) for continuous actions: follows Q-values, learned from rollouts."""

    gamma: Annotated[float, Meta(ge=0, lt=1, description="discount factor per step")] = 0.99
    q_lambda: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="lambda of the returns: 0 bootstraps from the next step, 1 only where a chunk or an episode ends",
        ),
    ] = 0.95
    kl_bound: Annotated[
        float,
        Meta(
            gt=0,
            description="KL divergence from the policy before the rollout batch, beyond which a step no longer improves the "
            "policy, but pulls it back",
        ),
    ] = 0.1
    kl_coef: Annotated[float, Meta(gt=0, description="initial weight of the KL divergence in the loss")] = 0.1
    kl_coef_rate: Annotated[
        float, Meta(ge=0, description="learning rate of kl_coef, which is adapted to kl_bound; 0 keeps it constant")
    ] = 3e-4
    target_entropy: Annotated[
        float, Meta(description="entropy that the temperature is adapted to, per dimension of the action")
    ] = -0.5
    temperature: Annotated[
        float,
        Meta(
            gt=0,
            description="initial temperature (weight of the entropy in the loss), where Q-values are divided by their running "
            "magnitude",
        ),
    ] = 0.001
    temperature_rate: Annotated[float, Meta(ge=0, description="learning rate of the temperature; 0 keeps it constant")] = 3e-4
    n_epochs: options.NEpochs = 8
    minibatches: options.Minibatches = 16
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScale = 1.0
    normalize_observation: options.NormalizeObservationFixed = True
    critics: Annotated[int, Meta(ge=1, le=2, description="critics; of two the smaller Q-value is used", extra=FIXED)] = 1
    network: Annotated[
        str,
        Meta(
            description="network before the output layer: auto (mlp), mlp, linear, nature, compact, or package.module:Name for "
            "your own; policy and critics each have their own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 128
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of the policy and of each critic", extra=FIXED)] = 2
    layer_norm: Annotated[
        bool,
        Meta(description="layer normalisation in the built-in networks: it replaces the target network", extra=FIXED),
    ] = True

    @property
    def outputs(self) -> int:
        return BINS

    @property
    def body(self) -> BodyOptions:
        normed = {"width": self.hidden, "layer_norm": self.layer_norm}
        built_in = {"mlp": normed | {"layers": self.layers}, "linear": {}, "nature": normed, "compact": normed}
        return BodyOptions(self.network, self.network_options, built_in, goal=True, normalise=self.normalize_observation)
