"""What a run is: one frozen, typed configuration. Each section is defined beside the code that reads it."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from actors.config import ActorsConfig, EnvConfig, EvaluatorConfig
from deploy.config.deploy import DeployConfig
from learner.algorithms.base import read_algorithm
from learner.config import LearnerConfig
from replay.config import ReplayConfig
from transport.names import Named


class RunConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """All settings of a run."""

    seed: Annotated[
        int, Meta(ge=0, le=2**31 - 1, description="seed of environments, exploration, sampling and initial weights")
    ] = 1
    total_steps: Annotated[int, Meta(ge=0, description="the run ends after this many environment steps; 0 means never")] = 0
    env: EnvConfig = EnvConfig()
    algorithm: Named = msgspec.field(default_factory=lambda: read_algorithm({}))
    actors: ActorsConfig = ActorsConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    deploy: DeployConfig = DeployConfig()
