"""Which processes a run consists of, what each is started with, and in what order they come and go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from deploy.config.run import RunConfig

# An orderly stop goes by role: no new experience, then the last weights, then the server that both were talking to. The number is
# the share of the whole time after which whoever is left of these roles is killed.
# An evaluator has nothing to hand over and little of the processor: it is asked at once and nobody waits for it before the end.
STOP_ORDER = ((("actor",), 0.6), (("learner",), 0.85), (("replay", "evaluator"), 1.0))


@dataclass(frozen=True)
class Plan:
    """One process of a run: `python -m MODULE ARGUMENTS`, started once all of `needs` have been ready.

    `python` is an interpreter of its own, where that is not the supervisor's.

    The run cannot go on without a `vital` one, nor without at least one of a role that is not `dispensable`.
    """

    name: str
    role: str
    module: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()
    vital: bool = False
    dispensable: bool = False
    threads: int = 1
    processes: int = 1  # that it starts to do its work, where that is more than one
    python: str = ""


def topology(config: RunConfig, run_dir: Path) -> tuple[Plan, ...]:
    """The processes of a run on one machine, in the order of their start.

    Servers and actors start side by side: each imports what it needs and then waits itself for the servers that it talks to.
    The evaluator comes later: nobody waits for it, and imports take processor time from the others.
    """
    folder, threads, python = str(run_dir), config.actors.threads, config.deploy.actor_python
    learner = config.learner
    computing = learner.threads or 1  # 0 has been settled by whoever launches
    servers = (
        Plan("replay", "replay", "replay", (folder,), vital=True),
        Plan("learner", "learner", "learner", (folder,), vital=True, threads=computing, processes=learner.processes),
    )
    actors = (
        Plan(f"actor-{i}", "actor", "actors", (folder, "--actor", str(i)), threads=threads, python=python)
        for i in range(config.actors.count)
    )
    evaluator = Plan(
        "evaluator", "evaluator", "actors.evaluation.evaluator", (folder,), needs=("learner",), dispensable=True, python=python
    )
    return (*servers, *actors, *((evaluator,) if config.evaluator.enabled else ()))
