"""`headrace scale`: changes the number of actors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import psutil
from msgspec import structs

from deploy import runs
from deploy.cli.common import DONE, FAILED, add_run, ask_supervisor, complain
from deploy.config.layers import load_run_config
from deploy.config.run import ConfigError
from deploy.config.values import COUNT
from deploy.launch import resources
from transport.messages import MOST_ACTORS, Scale, Scaling


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("actors", type=COUNT, metavar="N", help="the new number of actors")
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    """Returns as soon as the supervisor has accepted: actors start and stop afterwards."""
    if not 1 <= parsed.actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {parsed.actors}")
    folder = runs.chosen(parsed)
    if not runs.is_up(folder):
        raise ConfigError(
            f"run {folder.name} is not up; start it with `headrace up --run {folder.name} --actors {parsed.actors}`"
        )
    config = load_run_config(folder, trusted=True)  # it is up, so its code runs already
    more = max(parsed.actors - config.actors.count, 0)
    scaled = structs.replace(config, actors=structs.replace(config.actors, count=parsed.actors))
    free = psutil.virtual_memory().available + (parsed.actors - more) * resources.ACTOR_BYTES
    if more and (crowded := resources.too_many_actors(scaled, free)):
        again = f"`headrace up --run {folder.name} --actors {parsed.actors} --deploy.overcommit true`"
        raise resources.NoSpace(f"{crowded}; to start them nevertheless, stop the run, then {again}")
    answer = ask_supervisor(folder, Scale(parsed.actors))
    if not isinstance(answer, Scaling):
        return complain(f"run {folder.name} is stopping, or its supervisor does not answer; see `headrace status`", FAILED)
    if answer.before == answer.actors:
        print(f"run {folder.name} has {answer.actors} actors already; abandoned ones are started again")
    else:
        print(f"run {folder.name} goes from {answer.before} to {answer.actors} actors; see `headrace status`")
    return DONE
