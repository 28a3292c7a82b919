"""`headrace trace`: which actor collected an item of replay."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import add_run
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.runs import read_spec_of
from replay.log import provenance
from replay.log.segments import LogRefused
from transport.experience import PERSON


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("key", type=COUNT, metavar="KEY", help="key of the item, a whole number, as batches carry it")
    target.add_argument("--json", action="store_true", help="print JSON, for programs")


def run(parsed: argparse.Namespace) -> int:
    folder = runs.chosen(parsed)
    try:
        origin = provenance.trace(folder.segments, read_spec_of(folder), parsed.key)
    except (provenance.NotThere, LogRefused) as error:
        raise ConfigError(f"run {folder.name}: {error}") from error
    except FileNotFoundError as error:  # by a run that is up, while its log was read
        raise ConfigError(f"run {folder.name}: item {parsed.key} has just been evicted") from error
    if parsed.json:
        print(json.dumps(origin._asdict()))
    else:
        chosen = "chosen by a person" if origin.policy_version == PERSON else f"policy v{origin.policy_version}"
        print(
            f"item {origin.key}: {origin.actor} (incarnation {origin.incarnation:x}), stream {origin.stream}, chunk "
            f"{origin.sequence} of that incarnation, offset {origin.offset}, {chosen}; in {origin.segment}"
        )
    return 0
