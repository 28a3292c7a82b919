"""The options of soft actor-critic."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from learner.algorithms.base import FIXED


class SacConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Soft actor-critic for continuous actions, its temperature found by itself; goals reached by chance are learned from too."""

    gamma: Annotated[float, Meta(ge=0, lt=1, description="discount per step")] = 0.99
    tau: Annotated[float, Meta(gt=0, le=1, description="share of the critics that the target takes over at each update")] = 0.005
    target_entropy: Annotated[float, Meta(description="entropy per dimension of the action that the temperature aims at")] = -1.0
    temperature: Annotated[float, Meta(gt=0, description="worth of entropy at the beginning")] = 0.2
    temperature_rate: Annotated[float, Meta(ge=0, description="learning rate of the temperature; 0: it stays")] = 3e-4
    hindsight: Annotated[
        int,
        Meta(
            ge=0,
            le=16,
            description="goals reached later that each row is told with, where the environment has goals",
            extra=FIXED,
        ),
    ] = 4
    clip_targets: Annotated[
        bool, Meta(description="targets stay in -1/(1-gamma) … 0: for rewards that are -1 until success and 0 then")
    ] = False
    reward_scale: Annotated[float, Meta(gt=0, description="rewards are multiplied by this before learning")] = 1.0
    network: Annotated[
        str, Meta(description="auto (mlp), mlp, linear, nature, or package.module:Name; each critic has its own", extra=FIXED)
    ] = "auto"
    network_options: Annotated[dict[str, Any], Meta(description="options of the network", extra=FIXED)] = {}  # noqa: RUF012
    hidden: Annotated[int, Meta(ge=1, description="width of the hidden layers", extra=FIXED)] = 256
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of the policy and of each critic", extra=FIXED)] = 2
