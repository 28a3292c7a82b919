"""Recurrent deep Q-learning from whole sequences: R2D2, Kapturowski et al. 2019 (openreview.net/forum?id=r1lyTjAqYX)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from learner.algorithms.base import Algorithm, Needs, Tree
from learner.algorithms.columns import memory_columns
from learner.algorithms.dqn.acting import UNKNOWN
from learner.algorithms.dqn.known import describe_q_network
from learner.algorithms.exploration import Q_FIGURES
from learner.algorithms.r2d2.acting import SequenceActing
from learner.algorithms.r2d2.config import R2d2Config
from learner.description import PolicyDescription
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Column, ExperienceSpec

if TYPE_CHECKING:
    from learner.algorithms.r2d2.update import R2d2Update
    from learner.networks.base import PolicyModule
    from learner.updates.base import Runtime


class R2d2(Algorithm):
    Config = R2d2Config
    actions = frozenset({"categorical", "masked"})
    figures = Q_FIGURES
    config: R2d2Config

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        return {
            "actors": {"count": 2, "envs_per_actor": 8, "chunk_seconds": 600.0},  # a sequence waits until it is full
            "replay": {
                "priority_exponent": 0.9,
                "samples_per_insert_low": 16.0,
                "samples_per_insert_high": 24.0,
            },
            "learner": {
                "batch_size": 1024,  # steps, in whole sequences
                "learning_rate": 5e-4,
                "adam_epsilon": 1e-5,
                "max_grad_norm": 10.0,
                "updates_per_epoch": 10,
                "publish_epochs": 1,
            },
        }

    def needs(self, env: ExperienceSpec) -> Needs:
        config = self.config
        priority = Column(PRIORITY, (), "<f4", once=True, rests=False, check="any", default=UNKNOWN)
        columns = (*memory_columns(config.memory, config.memory_width), priority)
        return Needs("sequences", n_step=config.n_step, burn_in=config.burn_in, columns=columns)

    def policy(self, spec: ExperienceSpec) -> PolicyModule:
        from learner.algorithms.r2d2.update import recurrent_q_network

        return recurrent_q_network(spec, self.config)

    def describe(self, spec: ExperienceSpec) -> PolicyDescription | None:
        return describe_q_network(spec, self.config.body, self.config.dueling)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> SequenceActing:
        return SequenceActing(spec, self.config, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> R2d2Update:
        from learner.algorithms.r2d2.update import R2d2Update

        return R2d2Update(self, spec, runtime)
