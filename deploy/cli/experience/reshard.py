"""`headrace reshard`: redistributes the experience of a stopped run over another number of replay shards."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import tomli_w

from deploy import runs
from deploy.cli.common import DONE, add_run
from deploy.config.files import Tree, read_toml
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.launch.sums import forget_sums, write_sums
from deploy.runs import read_spec_of
from replay.log.reshard import reshard
from replay.log.segments import LogRefused
from transport.files.writing import write_durably
from transport.messages.fields import MOST_SHARDS
from transport.run_dir import RunDir


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("shards", type=COUNT, metavar="N", help="the new number of replay shards")
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    if not 1 <= parsed.shards <= MOST_SHARDS:
        raise ConfigError(f"a run has 1 to {MOST_SHARDS} replay shards, not {parsed.shards}")
    folder = runs.chosen(parsed)
    with runs.locked(folder):
        spec, settings = read_spec_of(folder), read_toml(folder.config, own=True)
        if spec.unit == "rollouts" and parsed.shards > 1:
            raise ConfigError(f"run {folder.name} learns from rollouts, which need one replay shard")
        forget_sums(folder)
        try:
            done = reshard(folder.segments, spec, parsed.shards, print)
            if folder.human_steps.is_dir():
                reshard(folder.human_steps, spec, parsed.shards, print)
        except LogRefused as error:
            raise ConfigError(f"run {folder.name}: {error}") from error
        _configure(folder, settings, parsed.shards)
        write_sums(folder)
    if not done.chunks:
        print(f"run {folder.name} has {parsed.shards} replay shards; there was no experience to redistribute")
    else:
        each = ", ".join(f"{count:,}" for count in done.chunks)
        print(
            f"run {folder.name}: {sum(done.chunks):,} chunks of {done.before} replay shards are now in {parsed.shards} ({each})"
        )
    return DONE


def _configure(run: RunDir, settings: Tree, shards: int) -> None:
    """Sets the number for the next start. Imports nothing that the configuration names."""
    settings.setdefault("replay", {})["shards"] = shards
    write_durably(run.config, tomli_w.dumps(settings).encode())
