"""The options of deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import CODE, FIXED, RARE

# Of the scale of rewards (TargetScale). Between them networks learn rewards as they are: targets of a root mean square of 0.1
# to 300, which those of the classic tasks have.
TOLERANCE = (0.01, 30.0)
LEAST_LOG_POLICY = -1.0  # of Munchausen's log-policies times the temperature, l_0 in the paper


class DqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Deep Q-learning (DQN): double Q-learning, a dueling network, n-step returns and Munchausen's targets, each an option."""

    double: options.Double = True
    dueling: options.Dueling = True
    n_step: options.NStep = 3
    gamma: options.Gamma = 0.99
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScaleOfQ = 1.0
    normalize_reward: options.NormalizeReward = False
    importance_exponent: options.ImportanceExponent = 0.4
    munchausen: Annotated[
        float,
        Meta(
            ge=0,
            le=1,
            description="Munchausen's alpha: this share of the log-policy of the action taken, at least -1, is added to its "
            "reward, and next values are those of the softmax policy in place of the best action's; 0 means neither. The paper "
            "has 0.9",
        ),
    ] = 0.0
    entropy_temperature: Annotated[
        float,
        Meta(
            gt=0,
            description="temperature of Munchausen's softmax policy over Q-values, in units of the reward, or of what "
            "normalize_reward makes of it",
            extra=RARE,
        ),
    ] = 0.03
    conservative: Annotated[
        float,
        Meta(
            ge=0,
            description="weight of the loss of conservative Q-learning (CQL), which keeps the values of actions that are not in "
            "the experience below those of actions that are; --offline has 1",
        ),
    ] = 0.0
    target_update_interval: options.TargetUpdateInterval = 1_000
    average_updates: Annotated[
        int,
        Meta(
            ge=0,
            description="actors and evaluator get the mean of the weights over about this many updates, and at first over a "
            "tenth of all; 0 means the newest weights",
        ),
    ] = 0
    normalize_observation: options.NormalizeObservationFixed = False
    network: Annotated[
        str,
        Meta(
            description="network before the output layer: auto (nature for images, mlp elsewhere), nature, nature_batchnorm, "
            "compact, mlp, linear, or package.module:Name for your own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 512
    filters: options.Filters = 1.0
    epsilon_base: options.EpsilonBase = 0.4
    epsilon_power: options.EpsilonPower = 7.0

    @property
    def body(self) -> BodyOptions:
        layered: dict[str, Any] = {"width": self.hidden, "apart": True}
        images = layered | {"filters": self.filters}
        built_in = {"mlp": layered, "linear": {}, "nature": images, "nature_batchnorm": layered, "compact": images}
        return BodyOptions(self.network, self.network_options, built_in, normalise=self.normalize_observation)
