"""`headrace eval`: plays with a run's newest weights and reports."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from deploy import runs
from deploy.cli.common import add_run
from deploy.cli.policies.common import actor_python, add_weights, child, named_weights, other_env, with_weights
from deploy.config import environment, options
from deploy.config.errors import ConfigError
from deploy.config.values import COUNT, TOLERANCES


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    add_run(target)
    target.add_argument("--episodes", type=COUNT, default=100, metavar="N", help="episodes (default: 100)")
    policy = target.add_mutually_exclusive_group()
    add_weights(policy)
    policy.add_argument("--random", action="store_true", help="actions at random instead of a policy, to compare with")
    target.add_argument("--stochastic", action="store_true", help="act with exploration instead of greedily")
    target.add_argument("--json", action="store_true", help="for programs")
    text = "robot: evaluate at each of these tolerances as well, such as 0.05,0.02,0.01"
    target.add_argument("--tolerances", type=TOLERANCES, default=[], metavar="METRES", help=text)
    options.add_precision(target)
    options.add_env_options(target)
    if {"-h", "--help"} & set(typed):
        environment.add_help(target, typed)


def run(parsed: argparse.Namespace) -> int:
    """Forwards to the evaluation, in a process of its own."""
    folder = runs.chosen(parsed) if parsed.random or parsed.weights else with_weights(parsed)
    if parsed.episodes < 1:
        raise ConfigError("--episodes must be at least 1")
    switches = [f"--{name}" for name in ("stochastic", "best", "random", "json") if getattr(parsed, name)]
    chosen = ("--episodes", str(parsed.episodes), *switches, *named_weights(parsed), *other_env(parsed, folder))
    if parsed.tolerances:
        chosen += ("--tolerances", *map(str, parsed.tolerances))
    if precision := options.given(parsed).get("actors", {}).get("precision"):
        chosen += ("--precision", precision)
    return child("actors.evaluation.evaluate", str(folder.path), *chosen, python=actor_python(folder))
