"""`headrace bench`: benchmarks, from a source tree."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy.children import ROOT
from deploy.cli.policies.common import child
from deploy.config.errors import ConfigError
from transport.names import nearest

BENCHMARKS = {
    "replay": "benchmarks.replay",
    "restore": "benchmarks.replay.restore",
    "env": "benchmarks.actors.env",
    "inference": "benchmarks.actors.inference",
    "actor_start": "benchmarks.actors.actor_start",
    "emulators": "benchmarks.actors.emulators",
    "pipeline": "benchmarks.pipeline",
    "learner": "benchmarks.learner",
    "device": "benchmarks.device",
    "gpu": "benchmarks.device.gpu",
    "robot": "benchmarks.robot",
    "success": "benchmarks.robot.success",
}


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("name", metavar="NAME", help=", ".join(BENCHMARKS))
    target.add_argument("rest", nargs=argparse.REMAINDER, metavar="…", help="options of the benchmark, such as --json")


def run(parsed: argparse.Namespace) -> int:
    """Forwards to a benchmark of the source tree."""
    if not (ROOT / "benchmarks").is_dir():
        raise ConfigError("benchmarks run from the source tree; this is an installed package")
    name = parsed.name.replace("-", "_")
    if name not in BENCHMARKS:
        raise ConfigError(f"no benchmark is called {parsed.name!r}; {nearest(name, BENCHMARKS)}")
    return child(BENCHMARKS[name], *parsed.rest)
