"""The learner section of a run's configuration, and what the learner needs of a run's files. No torch here: the supervisor
reads this too."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from learner.algorithms.base import read_algorithm
from transport.experience import ExperienceSpec, read_spec
from transport.names import Named
from transport.run_dir import RunDir


class LearnerConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How batches become weights."""

    processes: Annotated[
        int, Meta(ge=1, le=64, description="learner processes, one for each device: an update learns from a batch of each")
    ] = 1
    batch_size: Annotated[int, Meta(ge=1, description="items per update and process, all micro-batches together")] = 64
    accumulation: Annotated[int, Meta(ge=1, description="micro-batches that an update is split into")] = 1
    learning_rate: Annotated[float, Meta(gt=0, description="Adam's step size")] = 1e-4
    adam_epsilon: Annotated[float, Meta(gt=0, description="Adam's denominator term")] = 1.5e-4
    max_grad_norm: Annotated[float, Meta(gt=0, description="gradients are clipped to this norm")] = 10.0
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

    def batch_items(self, spec: ExperienceSpec) -> int:
        """Transitions of a batch, or whole chunks where these are the spec's unit."""
        return self.batch_size if spec.unit == "transitions" else self.batch_size // spec.chunk_length

    def slots(self, spec: ExperienceSpec) -> int:
        """Batches in the memory that a process shares with replay: the one in use keeps its slot."""
        return 1 if spec.unit == "rollouts" else self.prefetch + 1  # rollouts that are asked for ahead would be older

    def leased(self, spec: ExperienceSpec) -> int:
        """Transitions, or whole chunks, in the slots of all processes."""
        return self.processes * self.batch_items(spec) * self.slots(spec)


class LearnerProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """settings/learner.json. `algorithm` is its table of config.toml: the name beside the options."""

    seed: int
    env_id: str
    algorithm: dict[str, Any]
    learner: LearnerConfig
    max_policy_lag: int = 1  # of rollouts, in versions


@dataclass(frozen=True)
class LearnerSettings:
    """What the learner needs of a run's files. `max_policy_lag`: of rollouts, in versions."""

    seed: int
    env_id: str
    algorithm: Named
    learner: LearnerConfig
    spec: ExperienceSpec
    max_policy_lag: int


def read_settings(run_dir: RunDir) -> LearnerSettings:
    """Raises ValueError (SpecError, UnknownName too), OSError."""
    given = msgspec.json.decode(run_dir.settings("learner").read_bytes(), type=LearnerProcess)
    algorithm, spec = read_algorithm(given.algorithm), read_spec(run_dir.spec.read_bytes())
    return LearnerSettings(given.seed, given.env_id, algorithm, given.learner, spec, given.max_policy_lag)
