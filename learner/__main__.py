"""`python -m learner RUN_DIR`: the learner process of a run. `--wait` starts it before the run has a folder.

Torch is imported only where it is needed: not for an update by the engine on the CPU.
"""

from __future__ import annotations

import argparse
import gc
import os
import sys
import time
from functools import partial
from pathlib import Path
from typing import NoReturn

from learner.algorithms.base import make_algorithm, read_algorithm
from learner.config import LearnerSettings, read_settings
from learner.loop import Learner
from learner.parallel.base import Group, GroupBroken, Life, process_name, rank_and_size
from learner.parallel.peers import BROKEN_STATUS
from learner.probe import serve
from learner.saving.rollback import Diverged
from learner.throughput_line import describe
from replay.client.base import ReplayRefused
from transport.experience import ExperienceSpec
from transport.lifetime import HOPELESS_STATUS, Lifetime, die_with_parent
from transport.run_dir import RunDir
from transport.text import say

GRACE_SECONDS = 5.0  # within which a failure of another process stops this one


def main() -> int:
    """Sets up, then runs the loop. Where several processes are configured, this one starts them, each with the same command."""
    gc.freeze()  # imported modules live until the end; collecting torch's there would delay it by a second
    folder = _folder()
    if folder is None:
        return 0
    run_dir = RunDir(folder)
    rank, size = rank_and_size()
    try:
        settings, spec = read_settings(run_dir)
        figures = make_algorithm(read_algorithm(settings.algorithm)).figures
    except (ValueError, OSError) as error:
        say(f"learner: {error}")
        return 2
    if settings.learner.processes > size:
        from learner.parallel.ranks import launch

        _exit_at_once(launch(run_dir, settings.learner.processes))
    line = partial(describe, figures=figures)
    if size == 1:
        life = Lifetime("learner", run_dir, line)
    else:  # all have the incarnation of the process that the supervisor started; rank 0 reports for it
        life = Lifetime(process_name(rank), run_dir, line if rank == 0 else lambda record: "", reports=rank == 0)
    status = _learn(settings, spec, run_dir, life, rank, size)
    if not status:
        life.close()
    if (settings.learner.compile and _still_compiling()) or rank > 0 or (status and size > 1):
        _exit_at_once(status)
    return status


def _folder() -> Path | None:
    """The run's folder; None where this process was to wait for it and there is to be no run."""
    parser = argparse.ArgumentParser(prog="python -m learner", description="The learner process of a run.")
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("run_dir", type=Path, nargs="?")
    either.add_argument(
        "--wait",
        nargs=3,
        metavar=("DEVICE", "PRECISION", "PROCESSES"),
        help="answer the questions of learner/probe.py, then read RUN_DIR from standard input",
    )
    options = parser.parse_args()
    if options.wait is None:
        return Path(options.run_dir)
    die_with_parent()
    device, precision, processes = options.wait
    folder = serve(device, precision, int(processes))
    return Path(folder) if folder else None


def _exit_at_once(status: int) -> NoReturn:
    """Ends the process without finalising the interpreter.

    Finalising might wait for an abandoned compilation or a broken collective.
    After an orderly end rank 0 exits normally, because its last record is still being sent.
    """
    sys.stdout.flush()
    os._exit(status)


def _learn(settings: LearnerSettings, spec: ExperienceSpec, run_dir: RunDir, life: Lifetime, rank: int, size: int) -> int:
    """Runs the loop until the process is asked to stop. Returns the exit status."""
    try:
        group = Group() if size == 1 else _join(settings.learner.device, rank, size, life)
        learner = Learner(settings, spec, run_dir, life, group)
        if rank == 0:
            learner.announce()
        if not learner.run():
            say(f"learner: {learner.checkpoints.outcome}; what was learned since is lost")
            return 1
    except (ValueError, OSError, MemoryError, ReplayRefused) as error:
        # An error in the configuration or a checkpoint occurs in all processes: only rank 0 logs it.
        if rank == 0 or not (isinstance(error, ValueError) and _stopped_soon(life)):
            say(f"{process_name(rank)}: {error}")
        return 2
    except Diverged as error:
        group.say(f"learner: {error}")
        return HOPELESS_STATUS
    except GroupBroken:  # the process that ended first has logged why, and the launcher logs which one it was
        return 0 if life.stopping else BROKEN_STATUS
    except RuntimeError as error:
        from learner.updates.compile import one_line
        from learner.updates.memory_fit import is_out_of_memory

        if not is_out_of_memory(error):
            raise
        # An update that has too little memory goes on in smaller parts; this is what surrounds it: weights, moments, batches.
        advice = "lower --learner.batch-size, --learner.prefetch or the network's size"
        say(f"{process_name(rank)}: out of memory ({one_line(error)}): {advice}")
        return 1
    return 0


def _join(device: str, rank: int, size: int, life: Life) -> Group:
    from learner.parallel.group import join
    from learner.parallel.ranks import resolve_each

    return join(resolve_each(device, size)[rank], life)


def _still_compiling() -> bool:
    from learner.updates.compile import still_compiling

    return still_compiling()


def _stopped_soon(life: Lifetime) -> bool:
    """True if the process is asked to stop within GRACE_SECONDS."""
    until = time.monotonic() + GRACE_SECONDS
    while not life.stopping and time.monotonic() < until:
        time.sleep(0.05)
    return life.stopping


if __name__ == "__main__":
    sys.exit(main())
