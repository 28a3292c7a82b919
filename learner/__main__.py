"""`python -m learner RUN_DIR`: the learner process of a run."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from learner.algorithms.base import make_algorithm
from learner.config import LearnerSettings, read_settings
from learner.loop import Learner
from learner.parallel.group import GroupBroken, join, place, process_name
from learner.parallel.ranks import BROKEN_STATUS, launch, resolve_each
from learner.throughput_line import describe
from learner.updates.compile import still_at_work
from learner.weights.rollback import Diverged
from replay.client.common import ReplayRefused
from transport.lifetime import HOPELESS_STATUS, Lifetime, say
from transport.run_dir import RunDir, write_atomically

LAST_WORDS_SECONDS = 5.0


def main() -> int:
    """Set up, then one loop. Where several processes are wanted this one starts them, each with this same command."""
    parser = argparse.ArgumentParser(prog="python -m learner", description="The learner process of a run.")
    parser.add_argument("run_dir", type=Path)
    run_dir = RunDir(parser.parse_args().run_dir)
    rank, size = place()
    try:
        settings = read_settings(run_dir)
    except (ValueError, OSError) as error:
        say(f"learner: {error}")
        return 2
    if settings.learner.processes > size:
        _leave(launch(run_dir, settings.learner.processes))
    line = partial(describe, figures=make_algorithm(settings.algorithm).figures)
    if size == 1:
        life = Lifetime("learner", run_dir, line)
    else:  # to the supervisor the process that it started is the learner, and rank 0 speaks for it
        life = Lifetime(process_name(rank), run_dir, line if rank == 0 else lambda record: "", os.getppid(), rank == 0)
    status = _learn(settings, run_dir, life, rank, size)
    if not status:
        life.close()
    if still_at_work() or rank > 0 or (status and size > 1):
        _leave(status)
    return status


def _leave(status: int) -> NoReturn:
    """Ends the process without taking the interpreter down, which might wait for an abandoned compilation or a broken sum, and
    with torch takes the better part of a second, of the few that a stop has, for each process of a group. After an orderly end
    rank 0 does not leave so: its last record is still being sent."""
    sys.stdout.flush()
    os._exit(status)


def _learn(settings: LearnerSettings, run_dir: RunDir, life: Lifetime, rank: int, size: int) -> int:
    """Until it is to stop; the exit status."""
    try:
        group = join(resolve_each(settings.learner.device, size)[rank], life)
        learner = Learner(settings, run_dir, life, group)
        if rank == 0:
            _introduce(learner, run_dir)
        learner.run()
        group.close()
    except (ValueError, OSError, MemoryError, ReplayRefused) as error:
        # What is wrong with a configuration or a checkpoint is so for all, and need be said but once.
        if rank == 0 or not (isinstance(error, ValueError) and _ended_by_the_others(life)):
            say(f"{process_name(rank)}: {error}")
        return 2
    except Diverged as error:
        group.say(f"learner: {error}")
        return HOPELESS_STATUS
    except GroupBroken:  # whoever ended first has said why, and the launcher will say who that was
        return 0 if life.stopping else BROKEN_STATUS
    return 0


def _ended_by_the_others(life: Lifetime) -> bool:
    """Whether it is asked to end within a moment."""
    until = time.monotonic() + LAST_WORDS_SECONDS
    while not life.stopping and time.monotonic() < until:
        time.sleep(0.05)
    return life.stopping


def _introduce(learner: Learner, run_dir: RunDir) -> None:
    """The first line of the log, and the file from which others know the device."""
    settings, group = learner.settings, learner.group
    optimisers = learner.runtime.optimisers.values()
    parameters = sum(parameter.numel() for optimiser in optimisers for parameter in optimiser.parameters)
    device, precision = str(learner.device), learner.runtime.first.precision
    write_atomically(run_dir.device, json.dumps({"device": device, "precision": precision}).encode())
    how = f"on {device} in {precision}" + (f", {group.size} processes with as many each" if group.size > 1 else "")
    size = "steps per rollout batch" if settings.spec.unit == "rollouts" else "items per update"
    say(f"{settings.learner.batch_size:,} {size} {how}, {parameters:,} parameters")


if __name__ == "__main__":
    sys.exit(main())
