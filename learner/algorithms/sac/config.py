"""The options of soft actor-critic."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.algorithms.sac.bins import BINS
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
            "-noise_exponent. 0 is independent noise at every step, 1 pink noise, 2 red noise",
        ),
    ] = 1.0
    noise_steps: Annotated[
        int, Meta(ge=1, le=1_000, description="steps for which the noise of an action is kept in exploration; 1 draws it anew")
    ] = 1
    imitation: Annotated[
        float,
        Meta(
            ge=0,
            description="weight, in the policy's loss, of the distance of its actions from those of the experience, in units "
            "of the mean value; --offline has 0.4",
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
    critic: Annotated[
        Literal["scalar", "categorical"],
        Meta(
            description="what a critic learns: scalar (the value, by squared errors), or categorical (a distribution over "
            "101 bins of the value divided by a running scale of the rewards, by cross-entropy)",
            extra=FIXED,
        ),
    ] = "scalar"
    policy_delay: Annotated[
        int,
        Meta(ge=1, le=100, description="updates of the critics for one of the policy and the temperature"),
    ] = 1
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
    weight_norm: Annotated[
        bool,
        Meta(
            description="rescale the weights of normalised layers to their first norm after each update, which keeps the "
            "effective learning rate (only with layer_norm)",
            extra=FIXED,
        ),
    ] = False

    @property
    def critics(self) -> int:
        return 2  # the minimum of their values is used

    @property
    def outputs(self) -> int:
        """Of each critic: a value, or the logits of bins."""
        return BINS if self.critic == "categorical" else 1

    @property
    def body(self) -> BodyOptions:
        """The body of the policy; critics have such torsos of their own."""
        wide = {"width": self.hidden}
        layered = wide | {"layers": self.layers, "layer_norm": self.layer_norm}
        built_in = {"mlp": layered, "linear": {}, "nature": wide, "compact": wide}
        return BodyOptions(self.network, self.network_options, built_in, goal=True, normalise=self.normalize_observation)
