"""`headrace export`: writes a run's policy and its configuration to one file."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from actors.evaluation.options import PlayOptions
from deploy.cli.common import add_trust
from deploy.cli.policies.common import child, settled, with_weights
from deploy.config import options


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("run", metavar="RUN", help="name or folder of a run")
    target.add_argument("out", metavar="OUT.safetensors", help="the file to write")
    options.add_fields(target, PlayOptions, ("best",))
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    folder = with_weights(parsed)
    settled(folder)
    return child("learner.weights.export", str(folder.path), str(folder.best if parsed.best else folder.latest), parsed.out)
