"""`python -m tests.chaos.besieged RUN_DIR SCHEME DESCRIPTORS`: replay, at a loopback port if so wanted, with few descriptors."""

from __future__ import annotations

import resource
import sys

from replay import __main__ as replay
from transport.run_dir import RunDir


def main() -> int:
    scheme, descriptors = sys.argv[2], int(sys.argv[3])
    if descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, descriptors), descriptors))
    if scheme == "tcp":
        RunDir.bind_address = lambda run, role: "tcp://127.0.0.1:*"  # type: ignore[method-assign,assignment]
    del sys.argv[2:]  # the rest is for this module
    return replay.main()


if __name__ == "__main__":
    sys.exit(main())
