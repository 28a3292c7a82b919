"""The learner section of a run's configuration, and what learner processes read at their start. No torch here."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from replay.config import ReplayConfig
from transport.experience import ExperienceSpec, read_spec
from transport.files.documents import read_bytes, read_document
from transport.messages.fields import MOST_ROWS
from transport.names import RARE
from transport.run_dir import RunDir


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The process that trains."""

    processes: Annotated[
        int,
        Meta(
            ge=1,
            le=64,
            description="learner processes; each trains on batches of its own and gradients are averaged. Set it to the "
            "number of GPUs",
        ),
    ] = 1
    batch_size: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_ROWS,
            description="transitions in a batch of one learner process; for algorithms that learn from rollouts the "
            "steps of a rollout batch",
        ),
    ] = 64
    accumulation: Annotated[
        int,
        Meta(
            ge=1, description="micro-batches that each batch is split into, to save device memory; must divide learner.batch_size"
        ),
    ] = 1
    learning_rate: Annotated[
        float, Meta(gt=0, description="learning rate of Adam; lin_3e-4 or cos_3e-4 for one that falls over the run")
    ] = 1e-4
    learning_rate_schedule: Annotated[
        Literal["constant", "linear", "cosine"],
        Meta(description="how the learning rate falls over learner.schedule_steps: not at all, evenly, or along half a cosine"),
    ] = "constant"
    learning_rate_end: Annotated[
        float, Meta(ge=0, le=1, description="share of the learning rate that is left at the end of its schedule")
    ] = 0.0
    schedule_steps: Annotated[
        int, Meta(ge=0, description="environment steps over which the learning rate falls; 0 means total_steps")
    ] = 0
    adam_epsilon: Annotated[float, Meta(gt=0, description="epsilon of Adam, which keeps its denominator above 0", extra=RARE)] = (
        1.5e-4
    )
    max_grad_norm: Annotated[float, Meta(gt=0, description="gradients are scaled down to this norm when they exceed it")] = 10.0
    updates_per_epoch: Annotated[
        int, Meta(ge=1, description="updates in an epoch; with rollouts an epoch is always one rollout batch")
    ] = 20
    episodes_per_epoch: Annotated[
        int,
        Meta(
            ge=0,
            description="episodes in an epoch, which then has as many updates as fit into the time that actors need for them, "
            "at most 10,000; 0 means learner.updates_per_epoch. With rollouts it has no effect",
            extra=RARE,
        ),
    ] = 0
    publish_epochs: Annotated[
        int, Meta(ge=1, description="epochs between two broadcasts of weights to the actors; lower it to give them newer weights")
    ] = 5
    checkpoint_epochs: Annotated[int, Meta(ge=1, description="epochs between two checkpoints on disk")] = 50
    checkpoint_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="seconds after which a checkpoint is written at the latest; 0: by learner.checkpoint_epochs only",
            extra=RARE,
        ),
    ] = 60.0
    keep_checkpoints: Annotated[
        int,
        Meta(ge=1, le=900, description="newest checkpoints kept; five older ones, spread over the run, stay for `headrace fork`"),
    ] = 3
    rollback_after: Annotated[
        int,
        Meta(
            ge=1,
            description="after this many consecutive updates that are skipped because of NaN or infinity, the learner "
            "restores a checkpoint",
            extra=RARE,
        ),
    ] = 100
    precision: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"],
        Meta(
            description="number type of forward passes in training (autocast); auto means float32, and for large convolutions "
            "what is fastest on the device"
        ),
    ] = "auto"
    compile: Annotated[
        bool,
        Meta(
            description="compile the update with torch.compile: the start takes minutes longer, each update less time. With "
            "learner.graphs the compiled update is recorded, too"
        ),
    ] = False
    graphs: Annotated[
        Literal["auto", "on", "off"],
        Meta(
            description="record updates as a CUDA graph and launch each as one, which is faster for small networks (CUDA and "
            "ROCm only); auto does so for algorithms that allow it"
        ),
    ] = "auto"
    engine: Annotated[
        Literal["auto", "numpy", "torch"],
        Meta(
            description="library that computes updates: numpy, which needs no torch and on a CPU is several times as fast for "
            "small networks, or torch, which can do everything; auto means numpy where it can and is faster. A run may change it "
            "at any resume"
        ),
    ] = "auto"
    device: Annotated[
        str,
        Meta(
            description="device that trains: auto (the best one found, or the CPU for a small network where updates cannot be "
            "recorded as a graph), cpu, cuda, cuda:1, directml, xpu or mps"
        ),
    ] = "auto"
    threads: Annotated[
        int,
        Meta(
            ge=0,
            le=1024,
            description="CPU threads that compute, in all learner processes together; 0 means every core that actors "
            "and replay leave free where images are trained on by the CPU, and 1 everywhere else",
        ),
    ] = 0
    prefetch: Annotated[
        int,
        Meta(
            ge=1,
            le=16,
            description="batches requested from replay in advance; raise it when the learner's line shows much data wait",
            extra=RARE,
        ),
    ] = 3
    memory_limit_bytes: Annotated[
        int,
        Meta(
            ge=0,
            description="device memory that updates may use; batches are split until they fit. 0 means all memory that is free",
        ),
    ] = 0
    weights: Annotated[
        str,
        Meta(
            description="file with the policy that a new run starts from, made by `headrace export`, or a checkpoint; "
            "empty means random weights"
        ),
    ] = ""

    clone_steps: Annotated[
        int,
        Meta(
            ge=0,
            description="steps of behaviour cloning before a new run learns: its policy imitates --replay.demonstrations (ppo, "
            "sac and reppo)",
        ),
    ] = 0

    def batch_items(self, spec: ExperienceSpec) -> int:
        """Items of a batch: transitions, or whole chunks where these are the spec's unit."""
        return self.batch_size if spec.unit == "transitions" else self.batch_size // spec.chunk_length

    def slots(self, spec: ExperienceSpec) -> int:
        """Slots in the memory that a process shares with replay: the batch in use occupies one."""
        return 1 if spec.unit == "rollouts" else self.prefetch + 1  # rollouts requested ahead would be older

    def leased(self, spec: ExperienceSpec) -> int:
        """Items in the slots of all processes."""
        return self.processes * self.batch_items(spec) * self.slots(spec)


class LearnerSettings(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of settings/learner.json. `algorithm` is the [algorithm] section of config.toml."""

    seed: int
    env_id: str
    algorithm: dict[str, Any]
    learner: LearnerConfig
    replay: ReplayConfig = ReplayConfig()  # of the run: of all shards together


def read_settings(run_dir: RunDir) -> tuple[LearnerSettings, ExperienceSpec]:
    """The settings of a run's learner, and its spec. Raises ValueError (also SpecError) and OSError."""
    return read_document(run_dir.settings("learner"), LearnerSettings), read_spec(read_bytes(run_dir.spec))


INFERENCE = "inference"  # name and endpoint of the process that acts for the actors of a machine


class InferenceProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """The contents of settings/inference.json, of the process that acts for the actors of a machine."""

    algorithm: dict[str, Any]
    most_count: int  # environments of an actor
    precision: str
    device: str
    threads: int  # 0: half as many as cores
