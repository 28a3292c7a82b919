"""Starts a process that plays with a run's weights."""

from __future__ import annotations

import argparse
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from actors.envs.make import env_section
from actors.evaluation.options import PlayOptions, RepeatOptions, to_arguments
from actors.exports.onnx.read import is_onnx, read_model
from actors.trust import FLAG
from deploy import runs, settings
from deploy.children import check_actor_python, child_environment, python_command
from deploy.cli.common import FAILED, add_trust
from deploy.cli.streams import tell
from deploy.config import command_line, options, trust
from deploy.config.files import FLAGS, Layer, read_run
from deploy.config.layers import load_run_config, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.signals import stop_signals
from deploy.views.sharing.named import policy_file
from learner.saving import export
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from transport.experience import SpecError
from transport.files.documents import decode
from transport.files.renamed import FORMAT
from transport.run_dir import RunDir
from transport.text import plain

OF_A_FILE = ("seed", "env", "algorithm", "evaluator")  # the settings in an exported file that say how its policy plays


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


@contextmanager
def opened(parsed: argparse.Namespace) -> Iterator[RunDir]:
    """The run that is meant, or for an exported file a run of that policy alone, until the end of the block. Raises
    ConfigError."""
    name = parsed.run_flag or parsed.run
    if not name or (file := policy_file(name)) is None:
        yield trusted(parsed)
        return
    if parsed.best:
        raise ConfigError(f"--best is for a run: {name} holds one policy")
    with tempfile.TemporaryDirectory(prefix="headrace-") as folder:
        try:
            yield unpacked(file, RunDir(Path(folder) / file.stem), parsed.trusted)
        except (CheckpointError, SpecError) as error:
            raise ConfigError(str(error)) from error


def unpacked(file: Path, run: RunDir, trust_it: bool) -> RunDir:
    """Writes what a run of the policy in a file needs in order to be played. Raises ConfigError, CheckpointError, SpecError."""
    onnx = read_model(file)[1] if is_onnx(file) else None
    weights, metadata, config = ({}, onnx, decode(onnx["config"], dict[str, Any])) if onnx else export.read_exported(file)
    config = {key: config[key] for key in OF_A_FILE if key in config}
    if not trust_it:
        trust.check_exported(config, file, f"add {FLAG}")
    run.create()
    try:
        run.config.write_bytes(tomli_w.dumps({"format": FORMAT} | config).encode())
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{file} has no configuration of a run ({error})") from error
    if onnx:
        shutil.copyfile(file, run.latest)
    else:
        checkpoint.write(run.latest, weights, metadata)
    for path, key in ((run.spec, "spec"), (run.spaces, "spaces"), (run.policy, "policy")):
        if key in metadata:
            path.write_text(metadata[key], encoding="utf-8")
    return run


def settings_of(name: str, trust_it: bool) -> dict[str, Any]:
    """The settings of a run that begins with a policy, in its environment and with its algorithm. Raises ConfigError."""
    if (file := policy_file(name)) is None:
        raise ConfigError(f"--policy: there is no file {name}")
    try:
        config = export.read_exported(file)[2]
    except CheckpointError as error:
        raise ConfigError(f"--policy {error}") from error
    found: dict[str, Any] = {section: config[section] for section in ("env", "algorithm") if section in config}
    if not trust_it:
        trust.check_exported(found, file, f"add {FLAG}")
    return found | {"learner": {"weights": str(file.resolve())}}


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
    return check_weights(parsed, trusted(parsed))


def check_weights(parsed: argparse.Namespace, run: RunDir) -> RunDir:
    """Raises ConfigError where the run has not the weights that are asked for."""
    named = vars(parsed).get("weights")
    if named and not Path(named).is_file():
        raise ConfigError(f"--weights: there is no file {named}")
    weights = run.best if parsed.best else run.latest
    if not named and not weights.exists():
        cause = "no evaluation has finished" if parsed.best else "the learner has not saved any"
        raise ConfigError(f"run {run.name} has no weights in checkpoints/{weights.name} yet, because {cause}: let it run longer")
    return run


def play(module: str, run: RunDir, chosen: PlayOptions | RepeatOptions, keys: bool = False) -> int:
    """Runs a module of actors/evaluation by the interpreter that can make the run's environment; `keys` as of child(). Raises
    ConfigError."""
    python = refreshed(run).deploy.actor_python
    check_actor_python(python)
    return child(module, *to_arguments(run, chosen), python=python, keys=keys)


def refreshed(run: RunDir) -> RunConfig:
    """The run's configuration. Writes the settings of its processes anew where it is down: they may be of an older version."""
    config = load_run_config(run, trusted=True)  # the caller has checked it
    if not runs.is_up(run):
        settings.write(run, config)
    return config


def child(module: str, *words: str, python: str = "", quiet: bool = False, keys: bool = False) -> int:
    """Runs a module in a process of its own; returns its exit status. `quiet`: without its stdout. `keys`: it reads this
    process's stdin, and decides when it ends after a signal. What it prints on stderr is made plain: a simulator may print
    anything there."""
    command = python_command(module, *words, python=python)
    out, stdin = subprocess.DEVNULL if quiet else None, None if keys else subprocess.DEVNULL
    with ExitStack() as opened:
        process = subprocess.Popen(command, stdin=stdin, env=child_environment(python), stdout=out, stderr=subprocess.PIPE)
        opened.enter_context(process)
        if keys:
            opened.enter_context(stop_signals(lambda number, frame: process.terminate()))
        for line in process.stderr or ():
            tell(plain(line.decode(errors="replace").rstrip("\n")))
    return process.returncode if process.returncode >= 0 else FAILED
