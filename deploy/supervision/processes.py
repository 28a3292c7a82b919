"""The processes of a run: their commands, the order in which they start and stop, and the state of each."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from deploy.config.run import RunConfig
from deploy.places.base import Process
from deploy.process_spec import ProcessSpec, actor, inference
from learner.config import INFERENCE
from replay.shards import shard_names
from transport.metrics import Record

# An orderly stop goes by role: first no new experience, then the last weights, then the server of both.
# An evaluator has nothing to hand over: it is asked to stop at once, and nothing waits for it before the end. At the
# planned end of a run it is asked after the learner, whose last weights it then evaluates.
STOP_ORDER = (("actor",), ("learner", "inference"), ("replay", "evaluator"))

State = Literal["waiting", "starting", "ready", "restarting", "stopping", "stopped", "failed"]


@dataclass
class ProcessState:
    """A process of the run and its current incarnation. Times are those of the supervisor's clock."""

    spec: ProcessSpec
    state: State = "waiting"
    process: Process | None = None
    started: float = 0.0
    start_at: float = 0.0  # the earliest time of the next start
    failures: float = 0.0  # unexpected exits, minus what later work has made up for
    restarts: int = 0  # of all incarnations
    last_exit: str | None = None
    been_ready: bool = False  # in any incarnation
    ready_at: float | None = None  # in this incarnation
    reports: int = 0  # of this incarnation
    settled: bool = False  # has reported since it was ready
    resting: bool = False  # says that it does nothing, because the run is paused
    last_report: float = 0.0  # its time, or that of its start
    record: Record = field(default_factory=dict)  # the newest; empty once it has ended
    last_record: Record = field(default_factory=dict)  # the newest of an incarnation that has ended
    killed: float | None = None  # when the supervisor killed it
    cause: str = ""  # why the supervisor killed it
    no_room: bool = False  # no place had room when it was due
    leaving: float | None = None  # since when it is no longer part of the run

    @property
    def name(self) -> str:
        return self.spec.name


def topology(config: RunConfig, run_dir: Path) -> tuple[ProcessSpec, ...]:
    """The processes of a run on one machine, in the order of their start.

    Servers and actors start side by side: each imports its modules and then waits for the servers that it needs. The evaluator
    starts when learner and an actor are ready: nothing waits for it, and its imports would take processor time from the others.
    """
    folder, threads, python = str(run_dir), config.actors.threads, config.deploy.actor_python
    learner = config.learner
    computing = learner.threads or 1  # 0 was replaced by the launch
    shards = shard_names(config.replay.shards)
    servers = (
        *(
            ProcessSpec(name, "replay", "replay", (folder, *(("--shard", str(index)) if len(shards) > 1 else ())), vital=True)
            for index, name in enumerate(shards)
        ),
        ProcessSpec("learner", "learner", "learner", (folder,), vital=True, threads=computing, processes=learner.processes),
    )
    acting = (inference(folder, INFERENCE),) if config.actors.inference == "batched" and config.deploy.local_actors else ()
    actors = (actor(folder, index, threads, python) for index in range(config.actors.count))
    evaluator = ProcessSpec(
        "evaluator",
        "evaluator",
        "actors.evaluation.evaluator",
        (folder,),
        needs=("learner", "actor"),
        dispensable=True,
        finishing_seconds=config.evaluator.last_seconds,
        python=python,
    )
    return (*servers, *acting, *actors, *((evaluator,) if config.evaluator.enabled else ()))
