"""A supervisor over stub processes: `python -m tests.deploy.host RUN_DIR [--total-steps N] [--bind ADDRESS] NAME=HOW …`."""

import argparse
import sys
from pathlib import Path

from deploy import runs
from deploy.config.deploy import DeployConfig
from deploy.config.files import write_config
from deploy.config.run import RunConfig
from deploy.reporting.logs import Terminal
from deploy.supervision.service import Service
from deploy.supervision.topology import Plan
from transport.run_dir import RunDir


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("how", nargs="*")
    parser.add_argument("--total-steps", type=int, default=0)
    parser.add_argument("--stop-after", type=float, default=0.0)
    parser.add_argument("--bind", default="")
    options = parser.parse_args()
    run = RunDir(options.run_dir)
    config = RunConfig(total_steps=options.total_steps, deploy=DeployConfig(stop_seconds=2.0, restarts=1, bind=options.bind))
    how = dict(pair.split("=") for pair in options.how)
    needs = {"learner": ("replay",), "actor": ("learner",)}

    def plan(config: RunConfig, folder: Path) -> list[Plan]:
        plans = []
        for name in ("replay", "learner", *(f"actor-{index}" for index in range(config.actors.count))):
            role = name.partition("-")[0]
            arguments = (str(folder), name, how.get(name, "well"))
            plans.append(Plan(name, role, "tests.deploy.stub", arguments, needs.get(role, ()), vital=role != "actor"))
        return plans

    with runs.locked(run):
        run.config.write_bytes(write_config(config))
        return Service(run, config, Terminal(sys.stdout), options.stop_after, plan).run()


if __name__ == "__main__":
    sys.exit(main())
