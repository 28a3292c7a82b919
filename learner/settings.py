"""The settings of a learner process, read from the run's files."""

from __future__ import annotations

from dataclasses import dataclass

from learner.algorithms.base import read_algorithm
from learner.config import LearnerConfig, LearnerProcess
from transport.experience import ExperienceSpec, read_spec
from transport.files.documents import read_bytes, read_document
from transport.names import Named
from transport.run_dir import RunDir


@dataclass(frozen=True)
class LearnerSettings:
    """The settings of a learner process, from the run's files."""

    seed: int
    env_id: str
    algorithm: Named
    learner: LearnerConfig
    spec: ExperienceSpec
    max_policy_lag: int
    shards: int = 1
    min_size: int = 1


def read_settings(run_dir: RunDir) -> LearnerSettings:
    """Raises ValueError (also SpecError and UnknownName) and OSError."""
    given = read_document(run_dir.settings("learner"), LearnerProcess)
    algorithm, spec = read_algorithm(given.algorithm), read_spec(read_bytes(run_dir.spec))
    replay = given.max_policy_lag, given.shards, given.min_size
    return LearnerSettings(given.seed, given.env_id, algorithm, given.learner, spec, *replay)
