"""The processes of a run: their commands, and the order in which they start and stop."""

from __future__ import annotations

from pathlib import Path

from deploy.config.run import RunConfig
from deploy.process_spec import ProcessSpec, actor, inference
from learner.config import INFERENCE
from replay.shards import shard_names

# An orderly stop goes by role: first no new experience, then the last weights, then the server of both.
# An evaluator has nothing to hand over: it is asked to stop at once, and nothing waits for it before the end. At the
# planned end of a run it is asked after the learner, whose last weights it then evaluates.
STOP_ORDER = (("actor",), ("learner", "inference"), ("replay", "evaluator"))


def topology(config: RunConfig, run_dir: Path) -> tuple[ProcessSpec, ...]:
    """The processes of a run on one machine, in the order of their start.

    Servers and actors start side by side: each imports its modules and then waits for the servers that it needs. The evaluator
    starts when the learner is ready: nothing waits for it, and its imports would take processor time from the others.
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
        needs=("learner",),
        dispensable=True,
        finishing_seconds=config.evaluator.last_seconds,
        python=python,
    )
    return (*servers, *acting, *actors, *((evaluator,) if config.evaluator.enabled else ()))
