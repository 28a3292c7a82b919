"""Parallelised Q-network, Gallici et al. 2024 (arXiv:2407.04811)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import Algorithm, Needs, Tree, known_description
from learner.algorithms.dqn.known import describe_q_network
from learner.algorithms.exploration import Q_FIGURES, EpsilonGreedyActing
from learner.algorithms.pqn.config import PqnConfig
from learner.description import PolicyDescription
from learner.inference.base import Inference
from transport.experience import ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.pqn.arrays import PqnArrayUpdate
    from learner.algorithms.pqn.update import PqnUpdate
    from learner.engine.runtime import EngineRuntime
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime


class Pqn(Algorithm):
    Config = PqnConfig
    actions = frozenset({"categorical", "masked"})
    figures = Q_FIGURES
    advice = {
        "learner": "fewer --algorithm.n-epochs or --algorithm.minibatches",
        "actors": "more --algorithm.n-epochs learn more from each step",
    }
    config: PqnConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        """The options for vectors are the Config's own. For images they are the paper's for Atari, whose return is estimated from
        fewer steps, in fewer passes. A CPU gets a smaller network, because its computing limits the run."""
        images = env is not None and env.has_images
        width = {"hidden": 512} if accelerated else {"network": "compact", "hidden": 256, "filters": 0.5}
        return {
            "algorithm": {"q_lambda": 0.65, "n_epochs": 2, **width} if images else {},
            "actors": {"envs_per_actor": 8, "chunk_seconds": 600.0},  # a rollout waits until it is full
            "learner": {
                "batch_size": 2048,  # steps per rollout batch, in whole chunks
                "learning_rate": 2.5e-4 if images else 5e-4,
                "adam_epsilon": 1e-5,
                "max_grad_norm": 10.0,
                "publish_epochs": 1,
                "checkpoint_epochs": 20,
            },
        }

    def needs(self, env: ExperienceSpec) -> Needs:
        return Needs("rollouts")

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.pqn.update import q_network

        return q_network(spec, self.config)

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_q_network(spec, self.config.body)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> EpsilonGreedyActing:
        return EpsilonGreedyActing(spec, self.config, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> PqnUpdate:
        from learner.algorithms.pqn.update import PqnUpdate

        return PqnUpdate(self, spec, runtime)

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> PqnArrayUpdate | None:
        from learner.algorithms.pqn.arrays import PqnArrayUpdate
        from learner.program.network import is_learnable

        description = known_description(self, spec)
        return PqnArrayUpdate(spec, self.config, description, runtime) if is_learnable(description) else None
