"""Reads the data set of --replay.demonstrations before a run is started, and checks it against the environment."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import msgspec

from actors.datasets.prepare import REQUEST, Request
from actors.envs.make import env_section
from deploy.children import child_environment, python_command
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import make_algorithm
from learner.cloning import demonstration_spec, obstacle
from transport.experience import ExperienceSpec, write_spec
from transport.run_dir import RunDir

FLAG = "--replay.demonstrations"


def convert(
    config: RunConfig, spec: ExperienceSpec, spaces: dict[str, Any], run: RunDir, stopped: bool, cleanup: ExitStack
) -> Path | None:
    """A folder with the demonstrations as chunks of the run, which is deleted with `cleanup` unless it has been moved; None where
    there are none, or the stopped run has them already. Says what they are. Raises ConfigError."""
    name, steps = config.replay.demonstrations, config.learner.clone_steps
    if steps and (why := obstacle(make_algorithm(config.algorithm), spec) if name else f"there are none: name them with {FLAG}"):
        raise ConfigError(f"--learner.clone-steps: {config.algorithm.name} cannot imitate demonstrations: {why}")
    if steps and config.learner.processes > 1:
        raise ConfigError("--learner.clone-steps: one learner process imitates: leave out --learner.processes")
    if steps and config.learner.weights:
        raise ConfigError("--learner.clone-steps and --learner.weights: a new run begins with one of them")
    if not name:
        return None
    if spec.unit == "rollouts" and not steps:
        raise ConfigError(
            f"{FLAG} is for algorithms with replay, such as dqn and sac: {config.algorithm.name} learns from its own rollouts"
        )
    if stopped and run.demonstrations.is_dir():
        return None
    run.path.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".demonstrations-", dir=run.path.parent))
    cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
    request = Request(
        name, env_section(config.env), write_spec(demonstration_spec(spec)).decode(), msgspec.json.encode(spaces).decode()
    )
    (folder / REQUEST).write_bytes(msgspec.json.encode(request))
    python = config.deploy.actor_python
    command = python_command("actors.datasets.prepare", str(folder), python=python)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace", env=child_environment(python)
    )
    said = (done.stdout.strip().splitlines() or [f"exit {done.returncode}"])[-1]
    if done.returncode:
        raise ConfigError(f"{FLAG} {name}: {said}")
    (folder / REQUEST).unlink()
    print(f"demonstrations: {said}", flush=True)
    return folder
