"""`headrace trace` and `headrace purge`: whose experience a run has stored, and how to be rid of it."""

from __future__ import annotations

import argparse
import json

from deploy import runs
from deploy.config.errors import ConfigError
from replay.log import provenance
from replay.log.segments import LogRefused
from transport.experience import ExperienceSpec, read_spec
from transport.names import nearest
from transport.run_dir import RunDir


def trace(parsed: argparse.Namespace) -> int:
    """Says where one item comes from."""
    run = runs.chosen(parsed)
    try:
        origin = provenance.trace(run.segments, _spec(run), parsed.key)
    except (provenance.NotThere, LogRefused) as error:
        raise ConfigError(f"run {run.name}: {error}") from error
    except FileNotFoundError as error:  # the run goes on: it may have been evicted while we looked
        raise ConfigError(f"run {run.name}: item {parsed.key} has just been evicted") from error
    if parsed.json:
        print(json.dumps(origin._asdict()))
    else:
        print(
            f"item {origin.key}: {origin.actor} (incarnation {origin.incarnation:x}), stream {origin.stream}, chunk "
            f"{origin.sequence} of that life, offset {origin.offset}, policy v{origin.policy_version}; in {origin.segment}"
        )
    return 0


def purge(parsed: argparse.Namespace) -> int:
    """Removes all that one actor has sent from a stopped run."""
    run = runs.chosen(parsed)
    with runs.locked(run):
        spec = _spec(run)
        try:
            known = provenance.actors(run.segments, spec)
            if parsed.actor not in known:
                raise ConfigError(f"run {run.name} has stored nothing of {parsed.actor!r}; {nearest(parsed.actor, known)}")
            chunks, rows = provenance.purge(run.segments, spec, parsed.actor)
        except LogRefused as error:
            raise ConfigError(f"run {run.name}: {error}") from error
    print(f"run {run.name}: {chunks:,} chunks of {parsed.actor} ({rows:,} steps) are gone; the next start restores the others")
    return 0


def _spec(run: RunDir) -> ExperienceSpec:
    if not run.spec.is_file():
        raise ConfigError(f"run {run.name} has recorded nothing yet")
    return read_spec(run.spec.read_bytes())
