"""Soft actor-critic, Haarnoja et al. 2018 (arXiv:1812.05905), with hindsight where the environment has goals."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from learner.algorithms.base import Algorithm, Needs, Tree, known_description
from learner.algorithms.sac.acting import GaussianActing
from learner.algorithms.sac.config import SacConfig
from learner.algorithms.sac.known import describe_critics, describe_gaussian_policy
from learner.description import PolicyDescription
from learner.inference.base import Inference
from learner.program.network import is_learnable
from transport.experience import Continuous, ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.sac.arrays import SacArrayUpdate
    from learner.algorithms.sac.update import SacUpdate
    from learner.engine.runtime import EngineRuntime
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime


class Sac(Algorithm):
    Config = SacConfig
    actions = frozenset({"continuous"})
    imitates = True
    offline: ClassVar[Tree | None] = {"algorithm": {"imitation": 0.4}}
    figures = {
        "td": "td {:.4g}",
        "q": "q {:,.2f}",
        "entropy": "entropy {:.2f}",
        "temperature": "temperature {:.3g}",
    }
    config: SacConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        return {
            "actors": {"count": 1, "envs_per_actor": 4, "chunk_seconds": 1.0},
            "replay": {
                "selector": "uniform",
                "capacity": 1_000_000,
                "min_size": 1_000,
                "samples_per_insert_low": 128.0,  # half an update per step; an update at the high end
                "samples_per_insert_high": 256.0,
            },
            "learner": {
                "batch_size": 256,
                "learning_rate": 1e-3,
                "adam_epsilon": 1e-8,
                "updates_per_epoch": 20,
                "publish_epochs": 1,
                "checkpoint_epochs": 50,
            },
        }

    def needs(self, env: ExperienceSpec) -> Needs:
        return Needs("transitions", goals=self.config.hindsight)

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.sac.networks import gaussian_policy

        return gaussian_policy(spec, self.config, "sac")

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_gaussian_policy(spec, self.config)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> GaussianActing:
        return GaussianActing(spec, inference, self.config.noise_exponent)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> SacUpdate:
        from learner.algorithms.sac.update import SacUpdate

        return SacUpdate(self, spec, runtime)

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> SacArrayUpdate | None:
        from learner.algorithms.sac.arrays import SacArrayUpdate

        policy, critics = known_description(self, spec), describe_critics(spec, self.config)
        if not (is_learnable(policy) and is_learnable(critics)):
            return None
        assert isinstance(spec.action, Continuous)
        return SacArrayUpdate(self.config, len(spec.action.low), policy, critics, runtime)
