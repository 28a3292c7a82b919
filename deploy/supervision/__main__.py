"""`python -m deploy.supervision RUN_DIR`: the supervisor of `headrace up --detach`, in the background."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from deploy import runs
from deploy.config.layers import load_run_config
from deploy.supervision.service import Service
from transport.run_dir import RunDir
from transport.sockets.keys import KeysError


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m deploy.supervision")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--stop-after-seconds", type=float, default=0.0)
    parser.add_argument("--stop-at-return", type=float)
    parser.add_argument("--stop-at", type=float)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir)
    try:
        with runs.locked(run):
            limits = {name: value for name, value in vars(options).items() if name != "run_dir"}
            return Service(run, load_run_config(run, trusted=True), None, **limits).run()
    except (runs.AlreadyUp, KeysError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
