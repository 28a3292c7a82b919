"""Starts a process that plays with a run's weights."""

from __future__ import annotations

import argparse
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actors.envs.make import env_section
from actors.evaluation.options import PlayOptions, to_arguments
from deploy import runs, settings
from deploy.children import check_actor_python, child_environment, python_command
from deploy.cli.common import FAILED, add_trust
from deploy.config import command_line, options, trust
from deploy.config.files import FLAGS, Layer, read_run
from deploy.config.layers import load_run_config, resolve
from deploy.config.run import ConfigError, RunConfig
from transport.run_dir import RunDir


def add_env(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    """Adds `--env.field` for another task than that of training."""
    add_trust(target)
    options.add_env_options(target, options.described_env(typed))


def other_env(parsed: argparse.Namespace, run: RunDir) -> dict[str, Any]:
    """The typed keys of the env section, checked. Raises ConfigError."""
    changed = command_line.given(parsed).get("env", {})
    if not changed:
        return {}
    section = env_section(resolve([read_run(run.config), Layer(FLAGS, {"env": changed})]).env)
    return {key: section[key] for key in changed if key in section}


def trusted(parsed: argparse.Namespace) -> RunDir:
    """The run that is meant. Raises ConfigError, also where it names code and is not to be trusted."""
    run = runs.chosen(parsed)
    values = read_run(run.config).values
    if parsed.trusted:
        trust.mark(run, values)
    trust.check_run(values, run.config, run)
    return run


def with_weights(parsed: argparse.Namespace) -> RunDir:
    """The run that is meant, which has the weights that are asked for. Raises ConfigError."""
    run = trusted(parsed)
    named = vars(parsed).get("weights")
    if named and not Path(named).is_file():
        raise ConfigError(f"--weights: there is no file {named}")
    weights = run.best if parsed.best else run.latest
    if not named and not weights.exists():
        cause = "no evaluation has finished" if parsed.best else "the learner has not saved any"
        raise ConfigError(f"run {run.name} has no weights in checkpoints/{weights.name} yet, because {cause}: let it run longer")
    return run


def play(module: str, run: RunDir, chosen: PlayOptions) -> int:
    """Runs a module of actors/evaluation by the interpreter that can make the run's environment. Raises ConfigError."""
    python = settled(run).deploy.actor_python
    check_actor_python(python)
    return child(module, *to_arguments(run, chosen), python=python)


def settled(run: RunDir) -> RunConfig:
    """The run's configuration. Writes the settings of its processes anew where it is down: they may be of an older version."""
    config = load_run_config(run)
    if not runs.is_up(run):
        settings.write(run, config)
    return config


def child(module: str, *words: str, python: str = "", quiet: bool = False) -> int:
    """Runs a module in a process of its own; returns its exit status. `quiet`: without what it prints on stdout."""
    command = python_command(module, *words, python=python)
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, env=child_environment(python), stdout=subprocess.DEVNULL if quiet else None
    )
    return done.returncode if done.returncode >= 0 else FAILED
