"""`headrace demo`: shows or records how a run's policy plays."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from actors.evaluation.options import DemoOptions
from deploy import runs
from deploy.cli.common import add_policy
from deploy.cli.policies.common import add_env, check_weights, opened, other_env, play
from deploy.config import command_line, options
from deploy.errors import ConfigError
from deploy.views.sharing.named import zoo

USAGE_LINE = (
    "headrace demo [RUN | FILE | zoo:NAME] [--video FILE | --headless | --steer] [--overlay] [--best | --weights FILE] "
    "[--env.field V …]"
)
DESCRIPTION = f"""\
Watch a policy play: in a window, or without a display or pygame in the terminal; or record it.

  headrace demo                       the run that is up, or the most recent one; a policy of the zoo where there is none
  headrace demo mario-ppo --best --video m.mp4
  headrace demo zoo:cartpole          a policy that comes with Headrace
  headrace demo --steer               Tab takes over: your keys choose the actions until you press it again

The zoo has {", ".join(zoo())}.
"""
FIRST = "zoo:snake"  # needs no package but Headrace's own


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_policy(target)
    options.add_fields(target.add_mutually_exclusive_group(), DemoOptions, ("best", "weights"))
    options.add_fields(target.add_mutually_exclusive_group(), DemoOptions, ("video", "headless", "steer"))
    options.add_fields(target, DemoOptions, ("overlay", "episodes", "seed"))
    add_env(target, typed)


def run(parsed: argparse.Namespace) -> int:
    if not (parsed.run or parsed.run_flag or parsed.best or parsed.weights or runs.all_runs()):
        print(f"there is no run in {runs.RUNS}/ yet, so this is {FIRST}", flush=True)
        parsed.run = FIRST
    with opened(parsed) as folder:
        chosen = command_line.read_fields(parsed, DemoOptions, env=other_env(parsed, check_weights(parsed, folder)))
        if chosen.overlay and chosen.headless:
            raise ConfigError("--overlay is drawn beside a picture, and --headless shows none")
        if chosen.video and not Path(chosen.video).parent.is_dir():
            raise ConfigError(f"--video: there is no folder {Path(chosen.video).parent}")
        return play("actors.evaluation.demo", folder, chosen, keys=chosen.steer)
