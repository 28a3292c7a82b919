"""`headrace purge`: deletes the experience of one actor from a stopped run."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial

from deploy import runs
from deploy.cli.common import add_run
from deploy.errors import ConfigError
from deploy.runs import read_spec_of
from replay.log import provenance
from replay.log.segments import LogRefused
from transport.names import nearest


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("actor", metavar="ACTOR", help="the actor, such as actor-3")


def run(parsed: argparse.Namespace) -> int:
    folder, say = runs.chosen(parsed), partial(print, file=sys.stderr, flush=True)
    with runs.locked(folder):
        spec = read_spec_of(folder)
        try:
            known = provenance.actors(folder.segments, spec, say)
            if parsed.actor not in known:
                raise ConfigError(
                    f"run {folder.name} has stored no experience of {parsed.actor!r}; {nearest(parsed.actor, known)}"
                )
            chunks, rows = provenance.purge(folder.segments, spec, parsed.actor, say)
            provenance.purge(folder.human_steps, spec, parsed.actor, say)
        except LogRefused as error:
            raise ConfigError(f"run {folder.name}: {error}") from error
    print(f"run {folder.name}: deleted {chunks:,} chunks of {parsed.actor} ({rows:,} steps); the next start restores the others")
    return 0
