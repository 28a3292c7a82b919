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
from transport.run_dir import RunDir


def add(target: argparse.ArgumentParser, typed: Sequence[str]) -> None:
    target.add_argument("actors", type=COUNT, metavar="N", help="the new number of actors")
    add_run(target)


def run(parsed: argparse.Namespace) -> int:
    """Returns as soon as the supervisor has accepted: actors start and stop afterwards."""
    folder = runs.chosen(parsed)
    said = change(folder, parsed.actors)
    if said is None:
        return complain(no_answer(folder), FAILED)
    print(f"{said}; see `headrace status`")
    return DONE


def no_answer(run: RunDir) -> str:
    return f"run {run.name} is stopping, or its supervisor does not answer; see `headrace status`"


def change(run: RunDir, actors: int) -> str | None:
    """Asks the supervisor for another number of actors. Returns what it does now, None without an answer. Raises ConfigError,
    NoSpace."""
    if not 1 <= actors <= MOST_ACTORS:
        raise ConfigError(f"a run has 1 to {MOST_ACTORS} actors, not {actors}")
    if not runs.is_up(run):
        raise ConfigError(f"run {run.name} is not up; start it with `headrace up --run {run.name} --actors {actors}`")
    config = load_run_config(run, trusted=True)  # it is up, so its code runs already
    more = max(actors - config.actors.count, 0)
    scaled = structs.replace(config, actors=structs.replace(config.actors, count=actors))
    free = psutil.virtual_memory().available + (actors - more) * resources.ACTOR_BYTES
    if more and (crowded := resources.too_many_actors(scaled, free)):
        again = f"`headrace up --run {run.name} --actors {actors} --deploy.overcommit true`"
        raise resources.NoSpace(f"{crowded}; to start them nevertheless, stop the run, then {again}")
    answer = ask_supervisor(run, Scale(actors))
    if not isinstance(answer, Scaling):
        return None
    if answer.before == answer.actors:
        return f"run {run.name} has {answer.actors} actors already; abandoned ones are started again"
    return f"run {run.name} goes from {answer.before} to {answer.actors} actors"
