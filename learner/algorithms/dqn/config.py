"""The options of deep Q-learning."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta, Struct

from learner.algorithms.base import FIXED


class DqnConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Deep Q-learning: double, dueling, n-step, prioritised; each can be switched off."""

    double: Annotated[bool, Meta(description="the online network picks the next action, the target network values it")] = True
    dueling: Annotated[bool, Meta(description="value and advantage streams", extra=FIXED)] = True
    n_step: Annotated[int, Meta(ge=1, le=64, description="steps of reward before bootstrapping", extra=FIXED)] = 3
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount per step")] = 0.99
    clip_rewards: Annotated[bool, Meta(description="learn from rewards clipped to -1 … 1; reported returns stay as they are")] = (
        False
    )
    reward_scale: Annotated[
        float, Meta(gt=0, description="rewards are multiplied by this before learning; Q-values of 1 to 30 learn best")
    ] = 1.0
    importance_exponent: Annotated[float, Meta(ge=0, le=1, description="beta of prioritised sampling's correction")] = 0.4
    target_update_interval: Annotated[int, Meta(ge=1, description="updates between copies into the target network")] = 1_000
    network: Annotated[
        str,
        Meta(
            description="auto (nature for images, else mlp), nature, nature_batchnorm, mlp, linear, or package.module:Name",
            extra=FIXED,
        ),
    ] = "auto"
    network_options: Annotated[dict[str, Any], Meta(description="options of the network", extra=FIXED)] = {}  # noqa: RUF012
    hidden: Annotated[int, Meta(ge=1, description="width of the hidden layers after the torso", extra=FIXED)] = 512
    epsilon_base: Annotated[float, Meta(ge=0, le=1, description="exploration of the most exploring environment")] = 0.4
    epsilon_power: Annotated[float, Meta(ge=0, description="the least exploring has epsilon_base ** (1 + this)")] = 7.0
