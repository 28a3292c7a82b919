"""Deep Q-learning: n-step, double, dueling, prioritised (the parts of Rainbow, arXiv:1710.02298, that matter most)."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import Algorithm, Needs, Tree, known_description
from learner.algorithms.dqn.acting import UNKNOWN, DqnActing
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.known import describe_q_network
from learner.algorithms.exploration import Q_FIGURES
from learner.description import PolicyDescription
from learner.inference.base import Inference
from learner.networks.known.torsos import LEAST_SIZE
from replay.table.layout import PRIORITY
from transport.experience import Column, ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.dqn.arrays import DqnArrayUpdate
    from learner.algorithms.dqn.update import DqnUpdate
    from learner.engine.runtime import EngineRuntime
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime

SLOW_SIMULATORS: Tree = {"samples_per_insert_limit": 32.0}
# Without a GPU the updates take nearly all of the time: a smaller network makes more of them.
LARGE_IMAGES_ON_CPU: Tree = {
    "algorithm": {"network": "compact", "filters": 0.5, "hidden": 256},
    "replay": SLOW_SIMULATORS | {"samples_per_insert_low": 4.0},
    "learner": {"batch_size": 32, "learning_rate": 2.5e-4},
}
VECTORS: Tree = {
    "algorithm": {
        "hidden": 128,
        "n_step": 5,
        "target_update_interval": 200,
        "normalize_observation": True,
        "normalize_reward": True,
    },
    "actors": {"chunk_seconds": 1.0},
    "replay": SLOW_SIMULATORS | {"capacity": 200_000, "min_size": 1_000},
    "learner": {
        "batch_size": 128,
        "learning_rate": 5e-4,
        "updates_per_epoch": 20,
        "publish_epochs": 1,
        "checkpoint_epochs": 25,
    },
}
# One value for each observation and action, where the observation is a single Discrete value. Nothing is generalised to
# actions that have not been tried, so they keep their first value and are explored where rewards are negative. An entry is
# updated alone, so TABLE_LEARNING_RATE is higher than a network's.
TABLE: Tree = {
    "network": "linear",
    "n_step": 1,
    "target_update_interval": 200,
    "average_updates": 1_000,
    "normalize_reward": True,
}
TABLE_LEARNING_RATE = 0.05


class Dqn(Algorithm):
    Config = DqnConfig
    actions = frozenset({"categorical", "masked"})
    figures = Q_FIGURES
    offline: ClassVar[Tree | None] = {"algorithm": {"conservative": 1.0}}
    config: DqnConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        """The Config's own options are for images. Without a GPU large ones get a smaller network. Small networks of vectors
        learn faster from newer and larger batches. For a single Discrete value they learn a table."""
        if env is None or env.has_images:
            images = () if env is None else (field.shape for field in env.fields if field.is_image)
            large = any(min(shape[-2:]) >= LEAST_SIZE for shape in images)
            return LARGE_IMAGES_ON_CPU if large and not accelerated else {"replay": SLOW_SIMULATORS}
        if not env.is_single_discrete:
            return VECTORS
        return VECTORS | {"algorithm": TABLE, "learner": VECTORS["learner"] | {"learning_rate": TABLE_LEARNING_RATE}}

    def needs(self, env: ExperienceSpec) -> Needs:
        priority = Column(PRIORITY, (), "<f4", rests=False, check="any", default=UNKNOWN)
        return Needs("transitions", n_step=self.config.n_step, columns=(priority,))

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.dqn.networks import q_network

        return q_network(spec, self.config)

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_q_network(spec, self.config.body, self.config.dueling, self.config.normalize_reward)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> DqnActing:
        return DqnActing(spec, self.config, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> DqnUpdate:
        from learner.algorithms.dqn.update import DqnUpdate

        return DqnUpdate(self, spec, runtime)

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> DqnArrayUpdate | None:
        from learner.algorithms.dqn.arrays import DqnArrayUpdate
        from learner.program.network import is_learnable

        description = known_description(self, spec)
        return DqnArrayUpdate(spec, self.config, description, runtime) if is_learnable(description) else None
