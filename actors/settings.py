"""What a process that acts is given: settings/PROCESS.json and the run's spec."""

from __future__ import annotations

import json

import msgspec

from actors.actor import ActorSettings
from actors.config import ActorProcess, EvaluatorConfig
from actors.envs.make import read_env
from learner.algorithms.base import read_algorithm
from transport.experience import read_spec
from transport.run_dir import RunDir

EVALUATOR = "evaluator"


def read_settings(run_dir: RunDir, index: int | None = None, other_env: str = "") -> ActorSettings:
    """Those of actor `index`, or of the evaluator, `headrace eval` and `headrace demo`; `other_env` (JSON) lies over the run's
    env section. Raises SpecError, UnknownName, OSError."""
    given = _read(run_dir, EVALUATOR if index is None else f"actor-{index}")
    return ActorSettings(
        index or 0,
        given.seed,
        read_env(given.env | json.loads(other_env or "{}")),
        read_algorithm(given.algorithm),
        given.actors,
        read_spec(run_dir.spec.read_bytes()),
    )


def read_evaluator(run_dir: RunDir) -> EvaluatorConfig:
    """The run's evaluator section."""
    return _read(run_dir, EVALUATOR).evaluator


def _read(run_dir: RunDir, process: str) -> ActorProcess:
    return msgspec.json.decode(run_dir.settings(process).read_bytes(), type=ActorProcess)
