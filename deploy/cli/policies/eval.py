"""`headrace eval`: plays episodes with a run's weights and reports return, length and success."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from actors.evaluation.options import EvaluationOptions
from deploy.cli.common import add_policy
from deploy.cli.policies.common import add_env, check_weights, opened, other_env, play
from deploy.config import command_line, options

USAGE_LINE = (
    "headrace eval [RUN | FILE | zoo:NAME] [--episodes N] [--best | --weights FILE | --random] [--json] [--env.field VALUE …]"
)
DESCRIPTION = """\
Play episodes with the newest weights of a run, acting greedily, and report return, length, success and score.

  headrace eval                                the run that is up, or the most recent one
  headrace eval mario-ppo --best --json        the best weights so far; figures as JSON
  headrace eval mario.safetensors              the policy in a file of `headrace export`, also one that was downloaded
"""


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_policy(target)
    options.add_fields(target.add_mutually_exclusive_group(), EvaluationOptions, ("best", "weights", "random"))
    options.add_fields(target, EvaluationOptions, ("episodes", "seed", "stochastic", "tolerances", "json"))
    options.add_precision(target)
    add_env(target, typed)


def run(parsed: argparse.Namespace) -> int:
    acting = {"precision": precision} if (precision := vars(parsed)["actors.precision"]) else {}
    with opened(parsed) as folder:
        if not parsed.random:
            check_weights(parsed, folder)
        chosen = command_line.read_fields(parsed, EvaluationOptions, env=other_env(parsed, folder), **acting)
        return play("actors.evaluation.evaluate", folder, chosen)
