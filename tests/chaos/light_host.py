"""A real supervisor over a real replay server and light actors, nobody learning: `python -m tests.chaos.light_host RUN_DIR`."""

import sys
from pathlib import Path

from deploy import runs
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.reporting.logs import Terminal
from deploy.supervision.service import Service
from deploy.supervision.topology import Plan
from transport.run_dir import RunDir


def plan(config: RunConfig, folder: Path) -> list[Plan]:
    """Replay, and as many actors as are wanted."""
    numbers = range(config.actors.count)
    return [
        Plan("replay", "replay", "replay", (str(folder),), vital=True),
        *(Plan(f"actor-{i}", "actor", "tests.chaos.light_actor", (str(folder), "--actor", str(i)), ("replay",)) for i in numbers),
    ]


def main() -> int:
    run = RunDir(Path(sys.argv[1]))
    try:
        with runs.locked(run):
            return Service(run, load_run_config(run.config), Terminal(sys.stdout), 0.0, plan).run()
    except runs.AlreadyUp as error:
        print(f"headrace: {error}")
        return 3


if __name__ == "__main__":
    sys.exit(main())
