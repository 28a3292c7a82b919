"""`headrace demo`: watch, or record, a run's policy."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy import runs
from deploy.cli.common import add_run
from deploy.cli.policies.common import actor_python, add_weights, child, named_weights, other_env, with_weights
from deploy.config import environment, options
from deploy.config.errors import ConfigError
from deploy.config.values import COUNT


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("--video", type=Path, metavar="OUT.mp4", help="record instead of opening a window")
    target.add_argument("--episodes", type=COUNT, default=1, metavar="N", help="episodes (default: 1)")
    target.add_argument("--headless", action="store_true", help="no window and no file: a line per episode")
    target.add_argument("--seed", type=COUNT, default=0, metavar="S", help="another start (default: 0)")
    add_weights(target.add_mutually_exclusive_group())
    options.add_env_options(target)
    if {"-h", "--help"} & set(typed):
        environment.add_help(target, typed)


def run(parsed: argparse.Namespace) -> int:
    """Forwards to the demonstration, in a process of its own."""
    folder = runs.chosen(parsed) if parsed.weights else with_weights(parsed)
    if parsed.episodes < 1:
        raise ConfigError("--episodes must be at least 1")
    if parsed.video is not None and not parsed.video.parent.is_dir():
        raise ConfigError(f"--video: there is no folder {parsed.video.parent}")
    if parsed.video is not None and parsed.headless:
        raise ConfigError("--headless shows nothing and --video records; take one of them")
    more = [f"--{name}" for name in ("best", "headless") if getattr(parsed, name)] + named_weights(parsed)
    more += ["--video", str(parsed.video)] if parsed.video is not None else []
    chosen = ("--episodes", str(parsed.episodes), "--seed", str(parsed.seed), *more, *other_env(parsed, folder))
    return child("actors.evaluation.demo", str(folder.path), *chosen, python=actor_python(folder))
