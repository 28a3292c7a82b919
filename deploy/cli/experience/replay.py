"""`headrace replay`: plays a past episode of a run again, from replay's log."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from actors.evaluation.options import RepeatOptions
from deploy import runs
from deploy.cli.common import add_run, add_trust
from deploy.cli.policies.common import play, trusted
from deploy.config import command_line, options
from deploy.errors import ConfigError

USAGE_LINE = (
    "headrace replay [RUN] [--episode best|worst|first-success|N | --step N | --list | --check] [--video FILE | --headless]"
)
DESCRIPTION = """\
Play a past episode again: in a window, or without a display or pygame in the terminal; or record it.

  headrace replay lander --list                       the episodes that replay's log holds
  headrace replay lander --episode best               the one with the highest return; 17 is the 17th of --list
  headrace replay lander --step 40000 --video m.mp4   the one that ended nearest to this step of the run
  headrace replay lander --check                      how many of all episodes repeat exactly

The environment is made anew, seeded as it was, and takes the actions of the log. Each observation, reward and end is compared
with the log. Where one differs, a line says at which step and what; from there on the pictures are of what the log holds. The
log holds what replay has not evicted yet. Runs of PPO keep no experience.

Exit status: 0 exact; 1 it departs from the log; 2 there is nothing to play.
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    options.add_fields(target.add_mutually_exclusive_group(), RepeatOptions, ("episode", "step", "list", "check"))
    options.add_fields(target.add_mutually_exclusive_group(), RepeatOptions, ("video", "headless"))
    options.add_fields(target, RepeatOptions, ("least_return",))
    add_trust(target)


def run(parsed: argparse.Namespace) -> int:
    folder = trusted(parsed)
    chosen = command_line.read_fields(parsed, RepeatOptions, steps=int((runs.read_status(folder) or {}).get("steps") or 0))
    if chosen.episode not in ("best", "worst", "first-success") and not chosen.episode.isdecimal():
        raise ConfigError(f"--episode {chosen.episode}: write best, worst, first-success, or a number of --list")
    if chosen.least_return is not None and chosen.episode != "first-success":
        raise ConfigError("--least-return says what a success is: add --episode first-success")
    if chosen.video and not Path(chosen.video).parent.is_dir():
        raise ConfigError(f"--video: there is no folder {Path(chosen.video).parent}")
    return play("actors.evaluation.repeat", folder, chosen)
