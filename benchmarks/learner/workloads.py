"""The workloads of `headrace bench learner`: networks of the shipped kinds on recorded play, and how a learner is set for it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import tomli_w
from msgspec import Struct

from benchmarks.common.settings import write_settings
from benchmarks.replay.wire import Kind, make_spec
from learner.algorithms.base import Needs, join, make_algorithm
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.ppo.config import PpoConfig
from learner.config import LearnerConfig
from transport.experience import ExperienceSpec, write_spec
from transport.names import Named
from transport.run_dir import RunDir

REWARD_SCALE = 1e-3  # the reward of a recorded row is its number


class Workload(Struct, frozen=True):
    """An algorithm and its network. `kind`: Mario's frames, 84x84 in stacks of four, or vectors of 22 floats."""

    name: str
    kind: Kind
    algorithm: DqnConfig | PpoConfig

    @property
    def rollouts(self) -> bool:
        """True where it learns from whole rollouts, each once."""
        return self.needs.unit == "rollouts"

    @property
    def algorithm_name(self) -> str:
        return "dqn" if isinstance(self.algorithm, DqnConfig) else "ppo"

    @property
    def needs(self) -> Needs:
        return make_algorithm(Named(self.algorithm_name, self.algorithm)).needs(make_spec(self.kind, 1, "none"))

    @property
    def images(self) -> bool:
        """True where its network begins with the Nature convolutions."""
        return self.kind == "frames"

    def spec(self) -> ExperienceSpec:
        """Chunks, stacks and columns as in a run."""
        return join(msgspec.structs.replace(make_spec(self.kind, self.needs.n_step, "lz4"), extras=()), self.needs)


PPO = {"target_kl": 0.0, "adaptive_kl": 0.0, "anneal_steps": 0, "minibatches": 4, "reward_scale": REWARD_SCALE}
WORKLOADS = {
    one.name: one
    for one in (
        Workload("nature", "frames", DqnConfig(reward_scale=REWARD_SCALE)),
        Workload("mlp", "vectors", DqnConfig(reward_scale=REWARD_SCALE, network="mlp", hidden=256)),
        Workload("ppo-nature", "frames", msgspec.convert({"hidden": 512, "n_epochs": 3} | PPO, PpoConfig)),
        Workload("ppo-mlp", "vectors", msgspec.convert({"hidden": 128, "n_epochs": 10} | PPO, PpoConfig)),
    )
}


class Setting(Struct, frozen=True):
    """How a learner is set. `batch`: items of an update, all micro-batches together; for PPO of a minibatch."""

    workload: str
    batch: int
    accumulation: int = 1
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    compile: bool = False
    graphs: bool = False
    device: str = "auto"
    threads: int = 1

    @property
    def name(self) -> str:
        """The name of a case."""
        times = f"{self.accumulation} x " if self.accumulation > 1 else ""
        parts = [f"{self.workload} {times}{self.batch // self.accumulation}"]
        parts += [self.precision] if self.precision != "auto" else []
        parts += [word for word, used in (("compiled", self.compile), ("graphs", self.graphs)) if used]
        return ", ".join(parts)

    def learner(self) -> LearnerConfig:
        """The learner's section of a run's configuration."""
        workload = WORKLOADS[self.workload]
        minibatches = workload.algorithm.minibatches if isinstance(workload.algorithm, PpoConfig) else 1
        given: dict[str, Any] = {
            "batch_size": self.batch * minibatches,
            "accumulation": self.accumulation,
            "precision": self.precision,
            "compile": self.compile,
            "graphs": "on" if self.graphs else "off",
            "device": self.device,
            "threads": self.threads,
        }
        if workload.rollouts:
            given |= {"publish_epochs": 1, "learning_rate": 3e-4, "max_grad_norm": 0.5}
        return msgspec.convert(given, LearnerConfig)

    def write(self, run_dir: RunDir) -> None:
        """The files of a run that the learner reads."""
        workload = WORKLOADS[self.workload]
        document = {
            "seed": 1,
            "env": {"id": "recorded"},
            "algorithm": {"name": workload.algorithm_name} | msgspec.to_builtins(workload.algorithm),
            "learner": msgspec.to_builtins(self.learner()),
        }
        run_dir.config.write_text(tomli_w.dumps(document))
        run_dir.spec.write_bytes(write_spec(workload.spec()))
        write_settings(run_dir, document)


def warm_up_updates(device: str) -> int:
    """After which a learner's are counted: on an accelerator, when kernels are chosen and an update has been recorded."""
    return 5 if device == "cpu" else 30


class Task(Struct, frozen=True):
    """The task of a loop written by hand. `run_dir`: of the server that draws its batches."""

    run_dir: str
    setting: Setting
    seconds: float
