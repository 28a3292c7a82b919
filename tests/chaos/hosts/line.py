"""A line that is slow and breaks: `python -m tests.chaos.hosts.line LISTEN TARGET PORT…` passes on what comes to LISTEN's ports.

It prints a line when it listens. It ends with its standard input, and prints how many connections there were and how many broke.
"""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack

from tests.harness.proxy import TcpProxy

FAULTS = {"delay_seconds": 0.02, "break_probability": 0.01}


def main() -> None:
    listen, target, *ports = sys.argv[1:]
    with ExitStack() as stack:
        proxies = [
            stack.enter_context(TcpProxy(f"tcp://{target}:{port}", int(port), listen=(listen, int(port)))) for port in ports
        ]
        for proxy in proxies:
            proxy.set(**FAULTS)
        print("ready", flush=True)
        sys.stdin.read()
        print(json.dumps({name: sum(getattr(each, name) for each in proxies) for name in ("connections", "resets")}), flush=True)


if __name__ == "__main__":
    main()
