"""Relative entropy pathwise policy optimisation, Voelcker et al. 2025 (arXiv:2507.11019)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import Algorithm, Needs, Tree, known_description
from learner.algorithms.reppo.config import ReppoConfig
from learner.algorithms.sac.acting import GaussianActing
from learner.algorithms.sac.known import describe_critics, describe_gaussian_policy
from learner.description import PolicyDescription
from learner.inference.base import Inference
from learner.program.network import is_learnable
from transport.experience import ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.reppo.arrays import ReppoArrayUpdate
    from learner.algorithms.reppo.update import ReppoUpdate
    from learner.engine.runtime import EngineRuntime
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime


class Reppo(Algorithm):
    Config = ReppoConfig
    actions = frozenset({"continuous"})
    imitates = True
    begins_random = False  # its rollouts are those of its policy
    exact_acting = True  # the change of the policy is bounded from the one that acts
    figures = {
        "kl": "kl {:.3f}",
        "clip_fraction": "clipped {:.0%}",
        "q": "q {:,.2f}",
        "entropy": "entropy {:.2f}",
        "temperature": "temperature {:.2g}",
    }
    advice = {
        "learner": "fewer --algorithm.n-epochs or --algorithm.minibatches",
        "actors": "more --algorithm.n-epochs learn more from each step",
    }
    config: ReppoConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        return {
            "actors": {"chunk_seconds": 600.0},  # a rollout waits until it is full
            "learner": {
                "batch_size": 2048,  # steps per rollout batch, in whole chunks
                "learning_rate": 3e-4,
                "adam_epsilon": 1e-8,
                "max_grad_norm": 0.5,
                "publish_epochs": 1,
                "checkpoint_epochs": 20,
            },
        }

    def needs(self, env: ExperienceSpec) -> Needs:
        return Needs("rollouts")

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.sac.networks import gaussian_policy

        return gaussian_policy(spec, self.config, "reppo")

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_gaussian_policy(spec, self.config)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> GaussianActing:
        return GaussianActing(spec, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> ReppoUpdate:
        from learner.algorithms.reppo.update import ReppoUpdate

        return ReppoUpdate(self, spec, runtime)

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> ReppoArrayUpdate | None:
        from learner.algorithms.reppo.arrays import ReppoArrayUpdate

        policy, critics = known_description(self, spec), describe_critics(spec, self.config)
        if not (is_learnable(policy) and is_learnable(critics)):
            return None
        return ReppoArrayUpdate(spec, self.config, policy, critics, runtime)
