"""The spec of the experience that a run has stored."""

from __future__ import annotations

from deploy.errors import ConfigError
from transport.experience import ExperienceSpec, read_spec
from transport.files.documents import read_bytes
from transport.run_dir import RunDir


def read_spec_of(run: RunDir) -> ExperienceSpec:
    if not run.spec.is_file():
        raise ConfigError(f"run {run.name} has no spec.json, so nothing has been recorded yet")
    return read_spec(read_bytes(run.spec))
