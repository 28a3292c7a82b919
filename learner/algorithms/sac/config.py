"""The options of soft actor-critic."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import CODE, FIXED


class SacConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Soft actor-critic (SAC) for continuous actions, with an automatic temperature and hindsight experience replay."""

    gamma: Annotated[float, Meta(ge=0, lt=1, description="discount factor per step")] = 0.99
    tau: Annotated[
        float, Meta(gt=0, le=1, description="share of the critics' weights that the target critics take over at each update")
    ] = 0.005
    target_entropy: Annotated[
        float, Meta(description="entropy that the temperature is adapted to, per dimension of the action")
    ] = -1.0
    temperature: Annotated[float, Meta(gt=0, description="initial temperature (weight of the entropy in the loss)")] = 0.2
    temperature_rate: Annotated[float, Meta(ge=0, description="learning rate of the temperature; 0 keeps it constant")] = 3e-4
    noise_exponent: Annotated[
        float,
        Meta(
            ge=0,
            le=2,
            description="how slowly the noise of exploration changes: its power falls with the frequency f as f ** "
            "-noise_exponent. 0 is independent noise at every step, 1 pink noise, 2 red noise. Slow noise finds distant rewards, "
            "and learns less elsewhere",
        ),
    ] = 0.0
    imitation: Annotated[
        float,
        Meta(
            ge=0,
            description="weight of imitation in the policy's loss: the squared distance of its actions from those of the batch, "
            "times the mean size of Q-values; --offline has 0.4",
        ),
    ] = 0.0
    hindsight: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="goals of hindsight experience replay: each step is also trained on with this many goals that "
            "its episode reached later (only environments with goals)",
            extra=FIXED,
        ),
    ] = 4
    clip_targets: Annotated[
        bool, Meta(description="clip Q-targets to [-1/(1-gamma), 0]; only for rewards that are -1 until success and 0 then")
    ] = False
    reward_scale: options.RewardScale = 1.0
    normalize_reward: options.NormalizeReward = False
    normalize_observation: options.NormalizeObservationFixed = False
    network: Annotated[
        str,
        Meta(
            description="network before the output layer: auto (mlp), mlp, linear, nature, compact, or package.module:Name for "
            "your own; policy and critics each have their own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 256
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of the policy and of each critic", extra=FIXED)] = 2
    layer_norm: Annotated[
        bool,
        Meta(description="layer normalisation before each activation of the critics and of the policy's mlp", extra=FIXED),
    ] = False

    @property
    def critics(self) -> int:
        return 2  # the minimum of their values is used

    @property
    def outputs(self) -> int:
        return 1

    @property
    def body(self) -> BodyOptions:
        """The body of the policy; critics have such torsos of their own."""
        wide = {"width": self.hidden}
        layered = wide | {"layers": self.layers, "layer_norm": self.layer_norm}
        built_in = {"mlp": layered, "linear": {}, "nature": wide, "compact": wide}
        return BodyOptions(self.network, self.network_options, built_in, goal=True, normalise=self.normalize_observation)
