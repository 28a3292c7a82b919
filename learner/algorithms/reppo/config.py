"""The options of relative entropy pathwise policy optimisation."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import CODE, FIXED


class ReppoConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Relative entropy pathwise policy optimisation (REPPO): learns action values from each rollout batch, and a policy by their
    gradient, within a bound on its change."""

    gamma: Annotated[float, Meta(ge=0, lt=1, description="discount factor per step")] = 0.99
    q_lambda: Annotated[
        float,
        Meta(ge=0, le=1, description="lambda of the targets: 0 relies on the critic, 1 on the rewards received"),
    ] = 0.95
    kl_bound: Annotated[
        float,
        Meta(
            gt=0, description="KL divergence from the policy before the rollout batch, beyond which an item no longer improves it"
        ),
    ] = 0.1
    kl_mode: Annotated[
        Literal["clipped", "full"],
        Meta(description="clipped: an item improves the policy, or beyond kl_bound pulls it back; full: each does both at once"),
    ] = "clipped"
    multiplier: Annotated[float, Meta(gt=0, description="initial weight of the KL divergence in the loss")] = 0.1
    multiplier_rate: Annotated[float, Meta(ge=0, description="learning rate of that weight; 0 keeps it constant")] = 3e-4
    target_entropy: Annotated[
        float, Meta(description="entropy that the temperature is adapted to, per dimension of the action")
    ] = -0.5
    temperature: Annotated[
        float,
        Meta(gt=0, description="initial temperature (weight of the entropy in the loss), in units in which values are about 3"),
    ] = 0.001
    temperature_rate: Annotated[float, Meta(ge=0, description="learning rate of the temperature; 0 keeps it constant")] = 3e-4
    value_samples: Annotated[
        int, Meta(ge=1, le=64, description="actions drawn in each state for its value, once per rollout batch")
    ] = 1
    n_epochs: options.NEpochs = 8
    minibatches: options.Minibatches = 16
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScale = 1.0
    normalize_observation: options.NormalizeObservationFixed = True
    noise_exponent: Annotated[
        float,
        Meta(
            ge=0,
            le=2,
            description="how slowly the noise of exploration changes: 0 is independent noise at every step, 2 red noise",
        ),
    ] = 0.0
    noise_steps: Annotated[int, Meta(ge=1, le=1_000, description="steps for which the noise of an action is kept")] = 1
    critics: Annotated[int, Meta(ge=1, le=2, description="critics; of two the smaller value is used", extra=FIXED)] = 1
    network: Annotated[
        str,
        Meta(description="network before the output layer of policy and critics: auto (mlp), mlp, or linear", extra=FIXED | CODE),
    ] = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 128
    critic_hidden: Annotated[
        int, Meta(ge=0, description="units per hidden layer of the critics; 0 means hidden", extra=FIXED)
    ] = 0
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of the policy and of each critic", extra=FIXED)] = 2
    layer_norm: Annotated[
        bool, Meta(description="layer normalisation before each activation of the critics and of the policy", extra=FIXED)
    ] = True
    critic_activation: Annotated[
        Literal["relu", "silu", "elu", "tanh"], Meta(description="activation of the critics", extra=FIXED)
    ] = "relu"

    @property
    def body(self) -> BodyOptions:
        """The body of the policy; critics have such torsos of their own."""
        layered = {"width": self.hidden, "layers": self.layers, "layer_norm": self.layer_norm}
        built_in = {"mlp": layered, "linear": {}}
        return BodyOptions(self.network, self.network_options, built_in, goal=True, normalise=self.normalize_observation)
