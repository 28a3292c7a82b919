"""The commands that need torch, a simulator or the source tree: each runs in a process of its own."""

from __future__ import annotations

import argparse
import json
import subprocess

from actors.envs.make import env_section
from deploy import runs, settings
from deploy.children import ROOT, check_actor_python, child_environment, python_command
from deploy.config import options
from deploy.config.errors import ConfigError
from deploy.config.files import FLAGS, Layer, read_run
from deploy.config.layers import load_run_config, resolve
from deploy.config.run import RunConfig
from transport.names import nearest
from transport.run_dir import RunDir

FAILED = 1


def evaluate(parsed: argparse.Namespace) -> int:
    """Forwards to the evaluation, in a process of its own."""
    run = runs.chosen(parsed) if parsed.random or parsed.weights else _with_weights(parsed)
    if parsed.episodes < 1:
        raise ConfigError("--episodes must be at least 1")
    switches = [f"--{name}" for name in ("stochastic", "best", "random", "json") if getattr(parsed, name)]
    chosen = ("--episodes", str(parsed.episodes), *switches, *_weights(parsed), *_other_env(parsed, run))
    if parsed.tolerances:
        chosen += ("--tolerances", *map(str, parsed.tolerances))
    if precision := options.given(parsed).get("actors", {}).get("precision"):
        chosen += ("--precision", precision)
    return _child("actors.evaluation.evaluate", str(run.path), *chosen, python=_actor_python(run))


def _weights(parsed: argparse.Namespace) -> list[str]:
    """The file that was named instead of the run's newest weights, for the child. Raises ConfigError."""
    if parsed.weights is not None and not parsed.weights.is_file():
        raise ConfigError(f"--weights: there is no file {parsed.weights}")
    return [] if parsed.weights is None else ["--weights", str(parsed.weights)]


def _other_env(parsed: argparse.Namespace, run: RunDir) -> list[str]:
    """What was typed of --env.…, checked, for the child. Raises ConfigError."""
    changed = options.given(parsed).get("env", {})
    if not changed:
        return []
    section = env_section(resolve([read_run(run.config), Layer(FLAGS, {"env": changed})]).env)
    return ["--env", json.dumps({key: section[key] for key in changed if key in section})]


def _with_weights(parsed: argparse.Namespace) -> RunDir:
    run = runs.chosen(parsed)
    weights = run.best if parsed.best else run.latest
    if not weights.exists():
        raise ConfigError(f"run {run.name} has no weights yet (checkpoints/{weights.name})")
    return run


def demo(parsed: argparse.Namespace) -> int:
    """Forwards to the demonstration, in a process of its own."""
    run = runs.chosen(parsed) if parsed.weights else _with_weights(parsed)
    if parsed.episodes < 1:
        raise ConfigError("--episodes must be at least 1")
    if parsed.video is not None and not parsed.video.parent.is_dir():
        raise ConfigError(f"--video: there is no folder {parsed.video.parent}")
    if parsed.video is not None and parsed.headless:
        raise ConfigError("--headless shows nothing and --video records; take one of them")
    more = [f"--{name}" for name in ("best", "headless") if getattr(parsed, name)] + _weights(parsed)
    more += ["--video", str(parsed.video)] if parsed.video is not None else []
    chosen = ("--episodes", str(parsed.episodes), "--seed", str(parsed.seed), *more, *_other_env(parsed, run))
    return _child("actors.evaluation.demo", str(run.path), *chosen, python=_actor_python(run))


def export(parsed: argparse.Namespace) -> int:
    """Forwards to the export, in a process of its own."""
    run = _with_weights(parsed)
    _settled(run)
    return _child("learner.weights.export", str(run.path), str(parsed.out), *(["--best"] if parsed.best else []))


def bench(parsed: argparse.Namespace) -> int:
    """Forwards to a benchmark of the source tree."""
    known = sorted(path.stem for path in (ROOT / "benchmarks").glob("*.py") if "def main(" in path.read_text())
    if not known:
        raise ConfigError("benchmarks run from the source tree; this is an installed package")
    if parsed.name not in known:
        raise ConfigError(f"no benchmark {parsed.name!r}; {nearest(parsed.name, known)}")
    return _child(f"benchmarks.{parsed.name}", *parsed.rest)


def _actor_python(run: RunDir) -> str:
    """Writes what the child reads, and gives the interpreter that can make the run's environment. Raises ConfigError."""
    config = _settled(run)
    python = config.deploy.actor_python
    check_actor_python(python)
    return python


def _settled(run: RunDir) -> RunConfig:
    """The run's configuration. Writes the settings of its processes anew where it is down: it may be of an older version."""
    config = load_run_config(run.config)
    if not runs.is_up(run):
        settings.write(run, config)
    return config


def _child(module: str, *arguments: str, python: str = "") -> int:
    command = python_command(module, *arguments, python=python)
    done = subprocess.run(command, stdin=subprocess.DEVNULL, env=child_environment(python))
    return done.returncode if done.returncode >= 0 else FAILED
