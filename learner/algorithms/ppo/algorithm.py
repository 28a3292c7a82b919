"""Proximal policy optimisation, Schulman et al. 2017 (arXiv:1707.06347)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import Algorithm, Needs, Tree
from learner.algorithms.columns import memory_columns
from learner.algorithms.ppo.acting import StochasticActing
from learner.algorithms.ppo.config import LOG_PROB, PpoConfig
from learner.algorithms.ppo.known import describe_policy
from learner.description import PolicyDescription
from learner.inference.base import Inference
from transport.experience import Column, Continuous, ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.ppo.array_update import PpoArrayUpdate
    from learner.algorithms.ppo.update import PpoUpdate
    from learner.engine.runtime import EngineRuntime
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime


class Ppo(Algorithm):
    Config = PpoConfig
    actions = frozenset({"categorical", "masked", "multicategorical", "continuous"})
    imitates = True
    begins_random = False  # its initial policy is nearly uniform
    exact_acting = True  # in another precision the acting policy would differ from the one that is learned
    figures = {
        "kl": "kl {:.4f}",
        "clip_fraction": "clipped {:.0%}",
        "entropy": "entropy {:.2f}",
        "explained_variance": "explained {:.0%}",
    }
    advice = {
        "learner": "fewer --algorithm.n-epochs or --algorithm.minibatches",
        "actors": "more --algorithm.n-epochs learn more from each step",
    }
    config: PpoConfig

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        """Values are scaled. Vectors get more minibatches, because their updates are cheap. Continuous actions need a learning
        rate that falls with the policy's standard deviation, and their steps are short. Images get fewer epochs, and on a CPU a
        smaller network, because there updates take most of the time. Discrete actions from images get smaller rollout
        batches and an entropy bonus: without them the policy soon tries nothing new."""
        options: Tree = {"normalize_reward": True} if env is not None else {}
        continuous = env is not None and isinstance(env.action, Continuous)
        images = env is not None and env.has_images
        if env is not None and not images:
            options |= {"minibatches": 16 if continuous else 32}
        if continuous:
            options |= {"gamma": 0.995, "adaptive_kl": 0.02}
        if images:
            options |= {"n_epochs": 4}
            options |= {"hidden": 512} if accelerated else {"network": "compact", "filters": 0.5, "hidden": 256}
        learner: Tree = {"batch_size": 2048, "learning_rate": 3e-4, "adam_epsilon": 1e-5}  # batch_size: steps, in whole chunks
        if images and not continuous:
            options |= {"ent_coef": 0.01}
            learner = {"batch_size": 1024, "learning_rate": 5e-4, "adam_epsilon": 1e-8}
        learner |= {"max_grad_norm": 0.5, "publish_epochs": 1, "checkpoint_epochs": 20}
        return {"algorithm": options, "actors": {"chunk_seconds": 600.0}, "learner": learner}  # a rollout waits until it is full

    def needs(self, env: ExperienceSpec) -> Needs:
        config = self.config
        state = memory_columns(config.memory, config.memory_width) if config.memory else ()
        return Needs("rollouts", columns=(Column(LOG_PROB, (), "<f4", default=None), *state))

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.ppo.networks import actor_critic

        return actor_critic(spec, self.config)[0]

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_policy(spec, self.config)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> StochasticActing:
        return StochasticActing(spec, self.config.noise_exponent, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> PpoUpdate:
        from learner.algorithms.ppo.recurrent import RecurrentPpoUpdate
        from learner.algorithms.ppo.update import PpoUpdate

        return (RecurrentPpoUpdate if self.config.memory else PpoUpdate)(self, spec, runtime)

    def array_update(self, spec: ExperienceSpec, runtime: EngineRuntime) -> PpoArrayUpdate | None:
        from learner.algorithms.ppo.array_update import array_update

        return array_update(self, spec, runtime)
