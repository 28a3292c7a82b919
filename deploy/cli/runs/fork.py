"""`headrace fork`: a second run from a point of a first one."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from deploy import runs
from deploy.cli.common import DONE, add_trust
from deploy.config import options, trust
from deploy.config.command_line import Parser, given, parse
from deploy.config.files import Tree, lookup
from deploy.config.values import COUNT, DURATION
from deploy.errors import ConfigError
from deploy.launch.make_fork import Fork, ForkRequest, make_fork
from transport.run_dir import RunDir
from transport.text import duration, plain

USAGE_LINE = "headrace fork RUN [NEW] [--at TIME | --step N | --checkpoint FILE] [--set SECTION.FIELD=VALUE …]"
DESCRIPTION = """\
Make a second run from a point of a first one: what if it had had other settings from there on? The first run may be up, and is
not disturbed.

  headrace fork night --set learner.learning-rate=1e-4     from the newest checkpoint; the fork is night-fork-1
  headrace fork night slow --at 40m --set learner.learning-rate=1e-4 --set replay.samples-per-insert-high=4
  headrace up --run slow                                   then start it
  headrace report night slow                               both on one page

Without a point the fork begins as a resume of the run would: with its newest checkpoint and all experience; `headrace checkpoint`
has a run that is up write one now. With a point it begins with the newest checkpoint from that time or step or before, and with
the experience that had been collected by then, as far as replay still holds it; priorities are those of now. A run keeps its
newest checkpoints (--learner.keep-checkpoints) and five older ones, spread over its time.

Steps and time go on from those of the first run. Experience is hard-linked, so it takes no space of its own. --set takes what a
resume may change, also for values such as actors=8 or total-steps=2e6; logs, figures and videos of the first run stay there.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("run", metavar="RUN", help="name or folder of a run")
    target.add_argument("name", nargs="?", metavar="NEW", help="name of the fork (default: RUN-fork-1, RUN-fork-2, …)")
    point = target.add_mutually_exclusive_group()
    point.add_argument("--at", type=DURATION, metavar="TIME", help="time that the run had been up: 90s, 40m or 2h")
    point.add_argument("--step", type=COUNT, metavar="N", help="environment steps that the run had done")
    point.add_argument("--checkpoint", type=Path, metavar="FILE", help="a full checkpoint of the run, epoch-….safetensors")
    target.add_argument(
        "--set",
        action="append",
        default=[],
        dest="changes",
        metavar="SECTION.FIELD=VALUE",
        help="a setting that the fork has instead; may be given several times",
    )
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    parent = runs.find(parsed.run)
    changes = _settings(parsed.changes, parent, parsed.trusted)
    point = {"seconds": parsed.at, "steps": parsed.step, "checkpoint": parsed.checkpoint}
    request = ForkRequest(parent, changes, parsed.name, **point, trusted=parsed.trusted)
    made = make_fork(request, partial(print, flush=True))
    print("\n".join(map(plain, _lines(parent, made))))
    return DONE


def _settings(words: Sequence[str], parent: RunDir, trusted: bool) -> Tree:
    """What was given as SECTION.FIELD=VALUE, read as flags of `headrace up` are. Raises ConfigError."""
    algorithm = lookup(trust.read_run(parent, trusted).values, "algorithm.name")
    if wrong := next((word for word in words if "=" not in word), None):
        raise ConfigError(f"--set {wrong!r}: expected SECTION.FIELD=VALUE, such as learner.learning-rate=1e-4")
    parser = Parser(add_help=False)
    options.add_config_options(parser, str(algorithm or ""))
    return given(parse(parser, [f"--{word.lstrip('-')}" for word in words], "fork"))


def _lines(parent: RunDir, made: Fork) -> list[str]:
    point, experience, name = made.point, made.experience, made.run.name
    lines = [
        f"run {name} goes on from {parent.name} after {duration(point.seconds)}, step {point.steps:,}",
        f"learner: {point.checkpoint}, policy v{point.policy_version}, written after {made.written}",
    ]
    if experience.rows:
        shared, copied = (f"{size / 1e6:,.1f} MB" for size in (experience.shared_bytes, experience.copied_bytes))
        lines.append(f"replay: {experience.rows:,} rows, {shared} shared with {parent.name} by hard links, {copied} copied")
    else:
        rollouts = runs.learns_from_rollouts(made.run)
        lines.append("replay: rollouts are collected anew" if rollouts else "replay: begins without experience")
    lines += [f"{key}: {value!r}, was {made.before[key]!r}" for key, value in point.settings.items()]
    return [*lines, f"start it with `headrace up --run {name}`; `headrace report {parent.name} {name}` shows both"]
