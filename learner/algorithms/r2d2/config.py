"""The options of recurrent deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from learner.algorithms import options
from learner.networks.known.torsos import BodyOptions
from transport.names import CODE, FIXED


class R2d2Config(Struct, frozen=True, forbid_unknown_fields=True):
    """Recurrent deep Q-learning (R2D2): Q-learning with a memory, from whole sequences, for partially observable environments."""

    memory: Annotated[
        Literal["lstm", "gru"], Meta(description="recurrent layer between network and output layer", extra=FIXED)
    ] = "lstm"
    memory_width: options.MemoryWidth = 64
    burn_in: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="steps before each sequence that only bring the recorded state of the memory up to date with the "
            "present weights",
            extra=FIXED,
        ),
    ] = 16
    value_rescaling: Annotated[
        bool,
        Meta(
            description="learn Q-values on a scale on which large ones grow like a square root, so that rewards need no clipping",
            extra=FIXED,
        ),
    ] = True
    double: options.Double = True
    dueling: options.Dueling = True
    n_step: options.NStep = 5
    gamma: options.Gamma = 0.997
    clip_rewards: options.ClipRewards = False
    reward_scale: options.RewardScale = 1.0
    importance_exponent: options.ImportanceExponent = 0.6
    target_update_interval: options.TargetUpdateInterval = 200
    network: Annotated[
        str,
        Meta(
            description="network before the memory: auto (nature for images, mlp elsewhere), nature, compact, mlp, linear, or "
            "package.module:Name for your own",
            extra=FIXED | CODE,
        ),
    ] = "auto"
    network_options: options.NetworkOptions = {}  # noqa: RUF012
    hidden: options.Hidden = 128
    epsilon_base: options.EpsilonBase = 0.4
    epsilon_power: options.EpsilonPower = 7.0

    @property
    def body(self) -> BodyOptions:
        wide: dict[str, Any] = {"width": self.hidden}
        built_in = {"mlp": wide | {"layers": 1}, "nature": wide, "compact": wide, "linear": {}}
        return BodyOptions(self.network, self.network_options, built_in, memory=self.memory, memory_width=self.memory_width)
