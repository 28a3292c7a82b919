"""R2D2, Kapturowski et al. 2019 without its value rescaling: `--algo stranger.recurrent:R2d2`. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from learner.algorithms.base import FIXED, Needs, Tree
from learner.algorithms.columns import memory_columns
from learner.algorithms.dqn.acting import DqnActing, initial_priority
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.dqn.config import DqnConfig
from learner.inference.base import Inference
from replay.table.layout import PRIORITY
from transport.experience import Column, Columns, ExperienceSpec

if TYPE_CHECKING:
    from learner.updates.base import Runtime

GREATEST_SHARE = 0.9  # of the greatest error in a sequence's priority; the rest is of the mean


class R2d2Config(DqnConfig, frozen=True, forbid_unknown_fields=True):
    """Deep Q-learning with memory, on sequences."""

    memory: Annotated[Literal["lstm", "gru"], Meta(description="what remembers", extra=FIXED)] = "lstm"
    memory_width: Annotated[int, Meta(ge=1, description="width of the memory", extra=FIXED)] = 64
    burn_in: Annotated[int, Meta(ge=0, description="rows that bring the state up to date", extra=FIXED)] = 4


class R2d2(Dqn):
    Config = R2d2Config
    actions = frozenset({"categorical"})
    config: R2d2Config

    @classmethod
    def defaults(cls, env: ExperienceSpec | None, accelerated: bool) -> Tree:
        return {"env": {"chunk_length": 16}, "learner": {"batch_size": 512, "learning_rate": 1e-3}}

    def needs(self, env: ExperienceSpec) -> Needs:
        config = self.config
        priority = Column(PRIORITY, (), "<f4", once=True, rests=False, check="any", default=-1.0)
        columns = (*memory_columns(config.memory, config.memory_width), priority)
        return Needs("sequences", n_step=config.n_step, burn_in=config.burn_in, columns=columns)

    def policy(self, spec: ExperienceSpec) -> Any:
        from stranger.recurrent_torch import policy  # type: ignore[import-not-found]

        return policy(spec, self.config)

    def acting(self, spec: ExperienceSpec, inference: Inference) -> DqnActing:
        return SequenceActing(spec, self.config, inference)

    def update(self, spec: ExperienceSpec, runtime: Runtime) -> Any:
        from stranger.recurrent_torch import R2d2Update

        return R2d2Update(self, spec, runtime)


class SequenceActing(DqnActing):
    def annotate(self, columns: Columns) -> Columns:
        """The errors of a chunk's items become one priority of the chunk, -1 where none is known."""
        error = initial_priority(self._spec, columns, self._config)  # [M, rows], -1 unknown
        known = error >= 0
        mean = np.where(known, error, 0.0).sum(1) / np.maximum(known.sum(1), 1)
        priority = np.where(known.any(1), GREATEST_SHARE * error.max(1) + (1 - GREATEST_SHARE) * mean, -1.0)
        return columns | {PRIORITY: priority.astype(np.float32)}
