"""`headrace scale`: changes the number of actors."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from msgspec import structs

from deploy import runs
from deploy.cli.common import DONE, FAILED, add_run, ask_supervisor, complain
from deploy.config.layers import load_run_config
from deploy.config.values import COUNT
from deploy.errors import ConfigError
from deploy.launch import access, resources
from transport.messages.control import Scale, Scaling, Stopping
from transport.messages.fields import MOST_ACTORS
from transport.messages.replay import Refused
from transport.run_dir import RunDir
from transport.system import free_memory


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("actors", type=COUNT, metavar="N", help="the new number of actors")
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    """Returns as soon as the supervisor has accepted: actors start and stop afterwards."""
    folder = runs.chosen(parsed)
    try:
        print(f"{change(folder, parsed.actors)}; see `headrace status`")
    except NoAnswer as error:
        return complain(str(error), FAILED)
    return DONE


class NoAnswer(Exception):
    """The supervisor has not answered."""


def change(run: RunDir, actors: int) -> str:
    """Asks the supervisor for another number of actors. Returns what it does now. Raises ConfigError, NoSpace, access.RunRefused,
    NoAnswer."""
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {actors}")
    if not runs.is_up(run):
        raise ConfigError(f"run {run.name} is not up; start it with `headrace up --run {run.name} --actors {actors}`")
    if refused := runs.refused_orders(run):
        raise access.RunRefused(refused)
    config = load_run_config(run, trusted=True)  # it is up, so its code runs already
    if config.offline:
        raise ConfigError(f"run {run.name} is offline: it learns from its data set alone and has no actors")
    more = max(actors - config.actors.count, 0)
    scaled = structs.replace(config, actors=structs.replace(config.actors, count=actors))
    free = free_memory() + (actors - more) * resources.ACTOR_BYTES
    if more and (crowded := resources.too_many_actors(scaled, free)):
        again = f"`headrace up --run {run.name} --actors {actors} --deploy.overcommit true`"
        raise resources.NoSpace(f"{crowded}; to start them nevertheless, stop the run, then {again}")
    match ask_supervisor(run, Scale(actors)):
        case Scaling(before, now):
            if before == now:
                return f"run {run.name} has {now} actors already; abandoned ones are started again"
            return f"run {run.name} goes from {before} to {now} actors"
        case Refused(reason):
            raise access.RunRefused(reason)
        case Stopping():
            raise access.RunRefused(f"run {run.name} is stopping")
    raise NoAnswer(f"the supervisor of run {run.name} does not answer; see `headrace status`")
