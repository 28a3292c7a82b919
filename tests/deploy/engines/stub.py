"""Stands in for deploy/engines/driver.py: writes the orders that it reads into a file, and ends where one says so."""

from __future__ import annotations

import sys

import msgspec

from deploy.engines.fleet import Connected
from deploy.engines.ray_engine import Close, ClusterSettings, EndHost, Order


def main() -> int:
    settings = msgspec.json.decode(sys.argv[1], type=ClusterSettings)
    print("something that Ray says", flush=True)
    print("\x1b[33m(raylet)\x1b[0m A worker died.\n    [state-dump] of its daemon", flush=True)
    print(msgspec.json.encode(Connected(())).decode(), flush=True)
    for line in sys.stdin.buffer:
        with open(settings.folder, "ab") as file:
            file.write(line)
        order = msgspec.json.decode(line, type=Order)
        if order == EndHost("yourself"):
            print("[2026-11-23 18:05:53,303 E 24422 24448] rpc_client.h:204: the cluster is gone", flush=True)
            return 1
        if isinstance(order, Close):
            return 0
    return 1


if __name__ == "__main__":
    sys.exit(main())
