"""`python -m deploy.supervision RUN_DIR`: the supervisor of `headrace up --detach`, in the background."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import runs
from deploy.config.layers import load_run_config
from deploy.config.stop_conditions import add_stop_options, stop_conditions
from deploy.supervision.service import Service
from transport.run_dir import RunDir
from transport.sockets.keys import KeysError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.supervision")
    parser.add_argument("run_dir", type=Path)
    add_stop_options(parser)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir)
    try:
        with runs.locked(run):
            return Service(run, load_run_config(run, trusted=True), None, stop_conditions(options)).run()
    except (runs.AlreadyUp, KeysError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
