"""A supervisor over processes of the test's choice: `python -m tests.harness.host KIND RUN_DIR …`.

KIND: `stubs`, which stand in for every role and behave as NAME=HOW says; `light`, real replay and actors without a policy;
`actors`, real replay and actors, the learner left to the test.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from actors.config import ActorsConfig
from deploy import runs
from deploy.config.files import write_config
from deploy.config.layers import load_run_config
from deploy.config.run import DeployConfig, RunConfig
from deploy.config.stop_conditions import add_stop_options, stop_conditions
from deploy.process_spec import ProcessSpec
from deploy.reporting.logs import Terminal
from deploy.supervision.processes import topology
from deploy.supervision.service import Service
from transport.run_dir import RunDir

Plans = Callable[[RunConfig, Path], list[ProcessSpec]]


def stubs(how: dict[str, str]) -> Plans:
    needs = {"learner": ("replay",), "actor": ("learner",)}

    def plan(config: RunConfig, folder: Path) -> list[ProcessSpec]:
        plans = []
        own = [name for name in how if name == "evaluator"]
        for name in ("replay", "learner", *(f"actor-{index}" for index in range(config.actors.count)), *own):
            role = name.partition("-")[0]
            arguments = (str(folder), name, how.get(name, "well"))
            plans.append(ProcessSpec(name, role, "tests.harness.stub", arguments, needs.get(role, ()), vital=role != "actor"))
        return plans

    return plan


def light(config: RunConfig, folder: Path) -> list[ProcessSpec]:
    numbers = range(config.actors.count)
    return [
        ProcessSpec("replay", "replay", "replay", (str(folder),), vital=True),
        *(
            ProcessSpec(f"actor-{i}", "actor", "tests.chaos.light_actor", (str(folder), "--actor", str(i)), ("replay",))
            for i in numbers
        ),
    ]


def actors(config: RunConfig, folder: Path) -> list[ProcessSpec]:
    specs = [entry for entry in topology(config, folder) if entry.role in ("replay", "actor")]
    return [replace(entry, needs=("replay",)) if entry.role == "actor" else entry for entry in specs]


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("stubs", "light", "actors"))
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("how", nargs="*")
    parser.add_argument("--total-steps", type=int, default=0)
    add_stop_options(parser)
    parser.add_argument("--stop-seconds", type=float, default=60.0)
    parser.add_argument("--bind", default="")
    parser.add_argument("--on", default="")
    parser.add_argument("--local-actors", type=int, default=1024)
    options = parser.parse_args()
    run = RunDir(options.run_dir)
    try:
        with runs.locked(run):
            if options.kind == "stubs":
                where = {"bind": options.bind, "on": options.on, "local_actors": options.local_actors}
                deploy = DeployConfig(stop_seconds=options.stop_seconds, restarts=1, record_seconds=0.5, **where)
                config = RunConfig(total_steps=options.total_steps, actors=ActorsConfig(count=2), deploy=deploy)
                run.config.write_bytes(write_config(config))
                plan: Plans = stubs(dict(pair.split("=") for pair in options.how))
            else:
                config, plan = load_run_config(run, trusted=True), {"light": light, "actors": actors}[options.kind]
            return Service(run, config, Terminal(sys.stdout), stop_conditions(options), plan=plan).run()
    except runs.AlreadyUp as error:
        print(f"headrace: {error}")
        return 3


if __name__ == "__main__":
    sys.exit(main())
