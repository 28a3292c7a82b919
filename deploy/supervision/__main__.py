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
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir)
    try:
        with runs.locked(run):
            config, limit = load_run_config(run, trusted=True), options.stop_after_seconds
            return Service(run, config, None, limit, stop_at_return=options.stop_at_return).run()
    except (runs.AlreadyUp, KeysError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
