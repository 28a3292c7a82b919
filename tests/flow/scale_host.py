"""A supervisor over real replay and actor processes, the learner left to the test: `python -m tests.flow.scale_host RUN_DIR`."""

import sys
from dataclasses import replace
from pathlib import Path

from deploy import runs
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.reporting.logs import Terminal
from deploy.supervision.service import Service
from deploy.supervision.topology import Plan, topology
from transport.run_dir import RunDir


def plan(config: RunConfig, folder: Path) -> list[Plan]:
    """All but learner and evaluator."""
    plans = [entry for entry in topology(config, folder) if entry.role in ("replay", "actor")]
    return [replace(entry, needs=("replay",)) if entry.role == "actor" else entry for entry in plans]


def main() -> int:
    run = RunDir(Path(sys.argv[1]))
    config = load_run_config(run.config)
    with runs.locked(run):
        return Service(run, config, Terminal(sys.stdout), 0.0, plan).run()


if __name__ == "__main__":
    sys.exit(main())
