"""`headrace export`: a run's policy as one file, its configuration inside."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from deploy.cli.policies.common import child, settled, with_weights


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("run", metavar="RUN", help="a run's name")
    target.add_argument("out", type=Path, metavar="OUT.safetensors", help="the file to write")
    target.add_argument("--best", action="store_true", help="the weights that the evaluator found best, instead of the newest")


def run(parsed: argparse.Namespace) -> int:
    """Forwards to the export, in a process of its own."""
    folder = with_weights(parsed)
    settled(folder)
    return child("learner.weights.export", str(folder.path), str(parsed.out), *(["--best"] if parsed.best else []))
