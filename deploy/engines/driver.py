"""`python -m deploy.engines.driver SETTINGS`: asks a cluster of Ray for the hosts of a run, as its supervisor orders.

With --check it only connects, and prints what `headrace up` wants to know before a launch.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue

import msgspec

from deploy.engines.ray import ClusterError, RayCluster
from deploy.engines.ray_engine import CHECK, Close, ClusterSettings, EndHost, Order, StartHost

TURN_SECONDS = 0.5
LAST_SECONDS = 25.0  # for a call to Ray that hangs, once the supervisor has ended


def main(arguments: Sequence[str]) -> int:
    settings = msgspec.json.decode(arguments[0], type=ClusterSettings)
    try:
        cluster = RayCluster(settings)
        if CHECK in arguments:
            print(msgspec.json.encode(cluster.facts()).decode(), flush=True)
            cluster.leave()
        else:
            _serve(cluster)
    except ClusterError as error:
        print(error, flush=True)
        return 1
    return 0


def _serve(cluster: RayCluster) -> None:
    orders: SimpleQueue[Order | None] = SimpleQueue()
    threading.Thread(target=_read, args=(orders,), daemon=True).start()
    _print(cluster.found())
    while True:
        try:
            order = orders.get(timeout=TURN_SECONDS)
        except Empty:
            pass
        else:
            if isinstance(order, StartHost):
                cluster.start(order)
            elif isinstance(order, EndHost):
                cluster.end(order.host)
            else:
                if isinstance(order, Close):
                    cluster.close()
                else:  # without a supervisor the hosts of a cluster go on for a while (deploy.orphan_seconds)
                    cluster.leave()
                return
        if orders.empty():
            for event in cluster.turn():
                _print(event)


def _read(orders: SimpleQueue[Order | None]) -> None:
    for line in sys.stdin.buffer:
        orders.put(msgspec.json.decode(line, type=Order))
    orders.put(None)  # not by a signal: a cluster of the run's own is to be ended in order
    time.sleep(LAST_SECONDS)
    os._exit(1)


def _print(event: msgspec.Struct) -> None:
    print(msgspec.json.encode(event).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
