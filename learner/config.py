"""The learner and algorithm sections of a run's configuration. No torch here: the supervisor reads this too."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct

from transport.experience import INITIAL_PRIORITY

LOG_PROB = "log_prob"  # a remembered column: of the action under the policy that chose it


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


class PpoConfig(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="ppo"):
    """Proximal policy optimisation: each rollout is learned from in a few passes, then forgotten."""

    gamma: Annotated[float, Meta(ge=0, le=1, description="discount per step")] = 0.99
    trace: Annotated[float, Meta(ge=0, le=1, description="lambda: 0 trusts the value function, 1 what was seen")] = 0.95
    clip: Annotated[float, Meta(gt=0, description="a probability ratio further than this from 1 is not rewarded")] = 0.2
    value_clip: Annotated[float, Meta(ge=0, description="values move at most this far per rollout; 0: as they will")] = 0.0
    passes: Annotated[int, Meta(ge=1, description="times that each rollout batch is gone through")] = 10
    minibatches: Annotated[int, Meta(ge=1, description="updates per pass, each on a share of the batch")] = 4
    entropy_coefficient: Annotated[float, Meta(ge=0, description="worth of acting at random")] = 0.0
    value_coefficient: Annotated[float, Meta(ge=0, description="weight of the value loss")] = 0.5
    normalise_advantage: Annotated[bool, Meta(description="advantages have mean 0 and deviation 1 in each minibatch")] = True
    normalise_observation: Annotated[
        bool, Meta(description="vectors are scaled by their running mean and deviation, which travel with the weights")
    ] = True
    max_kl: Annotated[float, Meta(ge=0, description="no further pass once the policy has moved this far; 0: all passes")] = 0.0
    target_kl: Annotated[
        float,
        Meta(ge=0, description="the learning rate follows, so that each rollout moves the policy about this far; 0: it does not"),
    ] = 0.0
    anneal_steps: Annotated[
        int, Meta(ge=0, description="steps over which learning rate and entropy coefficient fall to their ends; 0: they stay")
    ] = 0
    learning_rate_end: Annotated[float, Meta(ge=0, le=1, description="share of the learning rate that is left at the end")] = 0.0
    entropy_end: Annotated[float, Meta(ge=0, le=1, description="share of the entropy coefficient left at the end")] = 0.0
    clip_rewards: Annotated[
        bool, Meta(description="learn from rewards clipped to -1 … 1; returns are still told as they are")
    ] = False
    reward_scale: Annotated[float, Meta(gt=0, description="rewards are multiplied by this before learning")] = 1.0
    network: Annotated[
        Literal["auto", "nature", "mlp"], Meta(description="torso; auto goes by observation: convolutions for images")
    ] = "auto"
    hidden: Annotated[int, Meta(ge=1, description="width of the hidden layers; convolutions are followed by one")] = 64
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of an MLP; policy and values each have their own")] = 2
    log_std: Annotated[float, Meta(ge=-5, le=2, description="log of the first deviation of continuous actions")] = -0.5

    @property
    def n_step(self) -> int:
        """Rows of a chunk after its last item: the one to bootstrap from."""
        return 1

    @property
    def remembered(self) -> tuple[str, ...]:
        """What actors send of each row besides what happened."""
        return (LOG_PROB,)


class SacConfig(Struct, frozen=True, forbid_unknown_fields=True, tag_field="name", tag="sac"):
    """Soft actor-critic for continuous actions, its temperature found by itself; goals reached by chance are learned from too."""

    gamma: Annotated[float, Meta(ge=0, lt=1, description="discount per step")] = 0.99
    tau: Annotated[float, Meta(gt=0, le=1, description="share of the critics that the target takes over at each update")] = 0.005
    target_entropy: Annotated[float, Meta(description="entropy per dimension of the action that the temperature aims at")] = -1.0
    temperature: Annotated[float, Meta(gt=0, description="worth of entropy at the beginning")] = 0.2
    temperature_rate: Annotated[float, Meta(ge=0, description="learning rate of the temperature; 0: it stays")] = 3e-4
    hindsight: Annotated[
        int, Meta(ge=0, le=16, description="goals reached later that each row is told with, where the environment has goals")
    ] = 4
    clip_targets: Annotated[
        bool, Meta(description="targets stay in -1/(1-gamma) … 0: for rewards that are -1 until success and 0 then")
    ] = False
    reward_scale: Annotated[float, Meta(gt=0, description="rewards are multiplied by this before learning")] = 1.0
    hidden: Annotated[int, Meta(ge=1, description="width of the hidden layers")] = 256
    layers: Annotated[int, Meta(ge=1, le=8, description="hidden layers of the policy and of each critic")] = 2

    @property
    def n_step(self) -> int:
        """Steps of reward before bootstrapping."""
        return 1

    @property
    def remembered(self) -> tuple[str, ...]:
        """What actors send of each row besides what happened."""
        return ()


AlgorithmConfig = DqnConfig | PpoConfig | SacConfig


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How batches become weights."""

    processes: Annotated[
        int, Meta(ge=1, le=64, description="learner processes, one for each device: an update learns from a batch of each")
    ] = 1
    batch_size: Annotated[int, Meta(ge=1, description="items per update and process, all micro-batches together")] = 64
    accumulation: Annotated[int, Meta(ge=1, description="micro-batches that an update is split into")] = 1
    learning_rate: Annotated[float, Meta(gt=0, description="Adam's step size")] = 1e-4
    adam_epsilon: Annotated[float, Meta(gt=0, description="Adam's denominator term")] = 1.5e-4
    max_gradient_norm: Annotated[float, Meta(gt=0, description="gradients are clipped to this norm")] = 10.0
    updates_per_epoch: Annotated[int, Meta(ge=1, description="updates in an epoch")] = 20
    publish_epochs: Annotated[int, Meta(ge=1, description="epochs between broadcasts of weights")] = 5
    checkpoint_epochs: Annotated[int, Meta(ge=1, description="epochs between weights written to disk")] = 50
    keep_checkpoints: Annotated[int, Meta(ge=1, description="checkpoints kept; older ones are deleted")] = 3
    rollback_after: Annotated[
        int, Meta(ge=1, description="updates in a row skipped as not finite, after which the learner goes back to a checkpoint")
    ] = 100
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"], Meta(description="autocast type; auto asks the device")
    ] = "auto"
    compile: Annotated[bool, Meta(description="compile the update (torch.compile): minutes at the start, then faster")] = False
    graphs: Annotated[
        bool, Meta(description="launch the update as one, recorded as a CUDA graph (CUDA, ROCm): faster for small networks")
    ] = False
    device: Annotated[str, Meta(description="auto, cpu, cuda, cuda:1, directml, xpu or mps")] = "auto"
    threads: Annotated[
        int,
        Meta(ge=0, description="compute threads of all processes; 0: one, for images on a CPU all that actors and replay leave"),
    ] = 0
    prefetch: Annotated[int, Meta(ge=1, le=16, description="batches asked for ahead")] = 3
    memory_limit_bytes: Annotated[
        int, Meta(ge=0, description="memory that updates may take; micro-batches are made small enough; 0: what is free")
    ] = 0
    weights: Annotated[
        str, Meta(description="a new run begins with this policy: a file of `headrace export`, or a checkpoint")
    ] = ""

    def lent(self, chunk_length: int, rollouts: bool) -> int:
        """Items in the shared memory of all processes that replay fills, or whole chunks where `rollouts` are wanted."""
        # The batch in use keeps its slot; rollouts are not asked for ahead, they would be older.
        return self.processes * (self.batch_size // chunk_length if rollouts else self.batch_size * (self.prefetch + 1))
