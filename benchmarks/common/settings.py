"""The settings and the spec of a run, without `headrace up`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import msgspec

from actors.envs.make import make_env, read_env
from actors.envs.spec import experience_spec
from deploy import settings
from deploy.config.algorithm import needs
from deploy.config.files import write_config
from deploy.config.run import RunConfig
from learner.algorithms.base import read_algorithm
from transport.experience import Codec, ExperienceSpec, write_spec
from transport.run_dir import RunDir


def write_settings(run_dir: RunDir, document: dict[str, Any]) -> None:
    """Writes settings/ from tables as in config.toml; what they leave out has its default. Sections may contradict each other."""
    kinds = {field.name: field.type for field in msgspec.structs.fields(RunConfig) if field.name not in ("algorithm", "env")}
    given = {name: msgspec.convert(value, kinds[name]) for name, value in document.items() if name in kinds}
    algorithm = read_algorithm(document.get("algorithm", {}))
    settings.write(run_dir, RunConfig(**given, env=read_env(document.get("env", {})), algorithm=algorithm))


def spec_of(config: RunConfig, codec: Codec | None = None) -> ExperienceSpec:
    """The spec of a run: its environment's, and what its algorithm needs. Raises EnvError, ConfigError."""
    codec = codec or config.replay.codec
    env = make_env(config.env)
    try:
        return experience_spec(env, config.env, codec, needs(config, experience_spec(env, config.env, codec)))
    finally:
        env.close()


def make_run(folder: Path, config: RunConfig, spec: ExperienceSpec) -> RunDir:
    """A new run's folder with the files that its processes read."""
    run = RunDir(Path(tempfile.mkdtemp(dir=folder)) / "bench")
    run.create()
    run.config.write_bytes(write_config(config))
    run.spec.write_bytes(write_spec(spec))
    settings.write(run, config)
    return run
