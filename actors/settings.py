"""Reads the settings of an actor or evaluator: settings/PROCESS.json and the run's spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from actors import trust
from actors.config import ActorProcess, ActorSettings
from actors.envs.make import read_env
from learner.algorithms.base import read_algorithm
from transport.experience import read_spec
from transport.files.documents import read_bytes, read_document
from transport.run_dir import RunDir

EVALUATOR = "evaluator"


def read_settings(run_dir: RunDir, index: int | None = None, other_env: Mapping[str, Any] | None = None) -> ActorSettings:
    """The settings of actor `index`; None: the evaluator's, which `headrace eval` and `headrace demo` use too. `other_env`
    replaces keys of the run's env section. Raises SpecError, UnknownName, Damaged, OSError."""
    process = _read(run_dir, EVALUATOR if index is None else f"actor-{index}")
    env, algorithm = read_env(process.env | dict(other_env or {})), read_algorithm(process.algorithm)
    return ActorSettings(index or 0, process, env, algorithm, read_spec(read_bytes(run_dir.spec)))


def check_trusted(run_dir: RunDir, index: int) -> None:
    """Raises UntrustedSettings where the settings of actor `index` name code, unless this account has made the run on this
    machine. Imports nothing that they name. Raises Damaged, OSError."""
    name = f"actor-{index}"
    trust.check(_read(run_dir, name), run_dir.settings(name), run_dir)


def _read(run_dir: RunDir, process: str) -> ActorProcess:
    return read_document(run_dir.settings(process), ActorProcess)
