"""Starts a process that acts with a run's weights."""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

from actors.envs.make import env_section
from deploy import runs, settings
from deploy.children import check_actor_python, child_environment, python_command
from deploy.cli.common import FAILED
from deploy.config import options
from deploy.config.errors import ConfigError
from deploy.config.files import FLAGS, Layer, read_run
from deploy.config.layers import load_run_config, resolve
from deploy.config.run import RunConfig
from transport.run_dir import RunDir


def add_weights(group: argparse._MutuallyExclusiveGroup) -> None:
    """Which weights, where not the newest."""
    group.add_argument("--best", action="store_true", help="the weights that the evaluator found best, instead of the newest")
    group.add_argument("--weights", type=Path, metavar="FILE", help="an older checkpoint of the run, or an exported file")


def named_weights(parsed: argparse.Namespace) -> list[str]:
    """The file that was named instead of the run's newest weights, for the child. Raises ConfigError."""
    if parsed.weights is not None and not parsed.weights.is_file():
        raise ConfigError(f"--weights: there is no file {parsed.weights}")
    return [] if parsed.weights is None else ["--weights", str(parsed.weights)]


def other_env(parsed: argparse.Namespace, run: RunDir) -> list[str]:
    """What was typed of --env.…, checked, for the child. Raises ConfigError."""
    changed = options.given(parsed).get("env", {})
    if not changed:
        return []
    section = env_section(resolve([read_run(run.config), Layer(FLAGS, {"env": changed})]).env)
    return ["--env", json.dumps({key: section[key] for key in changed if key in section})]


def with_weights(parsed: argparse.Namespace) -> RunDir:
    run = runs.chosen(parsed)
    weights = run.best if parsed.best else run.latest
    if not weights.exists():
        raise ConfigError(f"run {run.name} has no weights yet (checkpoints/{weights.name})")
    return run


def actor_python(run: RunDir) -> str:
    """Writes what the child reads, and gives the interpreter that can make the run's environment. Raises ConfigError."""
    config = settled(run)
    python = config.deploy.actor_python
    check_actor_python(python)
    return python


def settled(run: RunDir) -> RunConfig:
    """The run's configuration. Writes the settings of its processes anew where it is down: it may be of an older version."""
    config = load_run_config(run.config)
    if not runs.is_up(run):
        settings.write(run, config)
    return config


def child(module: str, *arguments: str, python: str = "") -> int:
    command = python_command(module, *arguments, python=python)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=child_environment(python))
    return done.returncode if done.returncode >= 0 else FAILED
