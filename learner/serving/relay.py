"""`python -m learner.serving.relay RUN_DIR NAME`: fetches each version of the weights once for a host, and serves its actors.

The learner's incarnation, version and sha256 are passed on with the bytes as they came. So an actor checks what a relay serves as
it would check what the learner serves. The relay serves only weights that fit the run's policy. No torch.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from pathlib import Path

from learner.description import PolicyDescription, read_description
from learner.serving.serve import WeightServer, payload_of
from learner.weights import follow
from learner.weights.checkpoint import unpack
from learner.weights.errors import CheckpointError
from learner.weights.follow import PayloadFollower, most_payload_bytes
from transport.files.documents import read_bytes
from transport.lifetime import Lifetime
from transport.messages.weights import Weights
from transport.metrics import Record
from transport.run_dir import RunDir
from transport.sockets.keys import Keys
from transport.text import say

SERVED = ("weights", "payload")  # endpoints, as the learner and the relay both have them
WAIT_SECONDS = 0.2


def of_learner(endpoint: str) -> str:
    """The name of the learner's endpoint in a folder where a relay has its own name."""
    return f"learner-{endpoint}"


class Relay:
    """Follows the weights at one pair of addresses and serves them at another."""

    def __init__(
        self,
        learner: tuple[str, str],
        own: tuple[str, str],
        policy: PolicyDescription,
        keys: Keys | None = None,
    ) -> None:
        """Addresses are (announcements, payloads). `keys`: for the learner. Raises OSError, KeysError."""
        self.server = WeightServer(*own)
        self._policy = policy
        most_bytes = most_payload_bytes(policy.most_bytes, len(policy.tensors))
        self.follower = PayloadFollower(*learner, self._take, most_bytes, keys)

    def turn(self, timeout_seconds: float) -> None:
        """Passes on what has arrived; waits at most `timeout_seconds` for it."""
        self.follower.wait(timeout_seconds)
        self.follower.poll()

    def close(self) -> None:
        self.follower.close()
        self.server.close()

    def _take(self, message: Weights, data: bytes) -> None:
        self._policy.check(unpack(data))
        payload = payload_of(message.incarnation, message.version, message.sha256, data)
        self.server.offer(lambda: payload)


def describe(record: Record) -> str:
    """The throughput line of the log. The host's agent takes a relay that prints none for one that hangs."""
    payloads = f"{record.get('payloads', 0):,.0f} payloads to actors"
    return f"{follow.describe(record)} · {payloads}{follow.describe_rejected(record)}"


def measure(relay: Relay, lifetime: Lifetime) -> None:
    follow.gauge(lifetime.metrics, relay.follower)
    lifetime.metrics.gauge("payloads", relay.server.payloads)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.serving.relay", description="The relay of a host's weights.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("name", help="of this process, such as relay-0")
    arguments = parser.parse_args()
    run_dir = RunDir(arguments.run_dir)
    lifetime = Lifetime(arguments.name, run_dir, describe, reports=False)
    try:
        policy = read_description(read_bytes(run_dir.policy))
        addresses = [run_dir.endpoint(name) for name in (*map(of_learner, SERVED), *SERVED)]
        announcements, payloads, own_announcements, own_payloads = map(str, addresses)
        relay = Relay((announcements, payloads), (own_announcements, own_payloads), policy, lifetime.keys)
    except (CheckpointError, OSError) as error:
        say(f"{arguments.name}: {error}")
        return 2
    lifetime.measure = partial(measure, relay, lifetime)
    lifetime.ready()
    while not lifetime.stopping:
        relay.turn(WAIT_SECONDS)
        lifetime.beat()
    relay.close()
    lifetime.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
