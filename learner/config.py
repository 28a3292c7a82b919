"""The learner and algorithm sections of a run's configuration. No torch here: the supervisor reads this too."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from transport.experience import INITIAL_PRIORITY


class DqnConfig(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="dqn"):
    """Deep Q-learning: double, dueling, n-step, prioritised; each can be switched off."""

    double: Annotated[bool, Meta(description="the online network picks the next action, the target network values it")] = True
    dueling: Annotated[bool, Meta(description="value and advantage streams")] = True
    n_step: Annotated[int, Meta(ge=1, le=64, description="steps of reward before bootstrapping")] = 3
    gamma: Annotated[float, Meta(ge=0, le=1, description="discount per step")] = 0.99
    clip_rewards: Annotated[
        bool, Meta(description="learn from rewards clipped to -1 … 1; returns are still told as they are")
    ] = False
    reward_scale: Annotated[
        float, Meta(gt=0, description="rewards are multiplied by this before learning; Q-values of 1 to 30 learn best")
    ] = 1.0
    importance_exponent: Annotated[float, Meta(ge=0, le=1, description="beta of prioritised sampling's correction")] = 0.4
    target_period: Annotated[int, Meta(ge=1, description="updates between copies into the target network")] = 1_000
    network: Annotated[
        Literal["auto", "nature", "nature_batchnorm", "mlp", "linear"],
        Meta(description="torso; auto goes by observation; linear: no hidden layer at all"),
    ] = "auto"
    hidden: Annotated[int, Meta(ge=1, description="width of the hidden layers after the torso")] = 512
    epsilon_base: Annotated[float, Meta(ge=0, le=1, description="exploration of the most exploring environment")] = 0.4
    epsilon_power: Annotated[float, Meta(ge=0, description="the least exploring has epsilon_base ** (1 + this)")] = 7.0

    @property
    def remembered(self) -> tuple[str, ...]:
        """What actors send of each row besides what happened."""
        return (INITIAL_PRIORITY,)


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How batches become weights."""

    batch_size: Annotated[int, Meta(ge=1, description="items per update, all micro-batches together")] = 64
    accumulation: Annotated[int, Meta(ge=1, description="micro-batches that an update is split into")] = 1
    learning_rate: Annotated[float, Meta(gt=0, description="Adam's step size")] = 1e-4
    adam_epsilon: Annotated[float, Meta(gt=0, description="Adam's denominator term")] = 1.5e-4
    max_gradient_norm: Annotated[float, Meta(gt=0, description="gradients are clipped to this norm")] = 10.0
    updates_per_epoch: Annotated[int, Meta(ge=1, description="updates in an epoch")] = 20
    publish_epochs: Annotated[int, Meta(ge=1, description="epochs between broadcasts of weights")] = 5
    checkpoint_epochs: Annotated[int, Meta(ge=1, description="epochs between weights written to disk")] = 50
    keep_checkpoints: Annotated[int, Meta(ge=1, description="checkpoints kept; older ones are deleted")] = 3
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="autocast type; auto asks the device")
    ] = "auto"
    compile: Annotated[bool, Meta(description="compile the update (torch.compile): minutes at the start, then faster")] = False
    device: Annotated[str, Meta(description="auto, cpu, cuda, cuda:1, directml, xpu or mps")] = "auto"
    threads: Annotated[int, Meta(ge=1, description="compute threads of the learner")] = 1
    prefetch: Annotated[int, Meta(ge=1, le=16, description="batches asked for ahead")] = 3

    @property
    def lent_items(self) -> int:
        """Items in the shared memory that replay fills."""
        return self.batch_size * (self.prefetch + 1)  # the batch in use keeps its slot
