"""`python -m learner.serving.inference RUN_DIR NAME`: the inference process of a machine, which acts for its actors.

It follows the weights, and answers the observations of many actors by one forward pass. A pass takes all requests that have
arrived during the one before: no request waits for another, and the busier the network is, the more rows a pass has. With its
outputs an actor gets the version that has computed them. Only processes of this user on this machine reach the socket.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from learner.algorithms.base import make_algorithm, read_algorithm
from learner.config import INFERENCE, InferenceProcess
from learner.description import PolicyDescription
from learner.inference.base import Inference
from learner.inference.open import open_inference, run_description
from learner.inference.remote import FLOAT, OUTPUTS, Part, observation_parts, read_arrays, send_arrays, state_parts
from learner.weights import follow
from learner.weights.follow import WeightFollower
from transport.experience import Columns, ExperienceSpec, read_spec
from transport.files.documents import read_bytes, read_document
from transport.lifetime import Lifetime
from transport.messages.weights import Infer, Inferred
from transport.metrics import Metrics, Record
from transport.run_dir import RunDir
from transport.sockets.channel import FRAME_BYTES, wait
from transport.sockets.server import Server
from transport.system import core_count
from transport.text import say

WAIT_SECONDS = 0.2
MOST_ROWS = 256  # of a pass, but for a single larger request: between two passes the process reports
MESSAGES_PER_TURN = 4096
UNREAD_PER_ACTOR = 16  # an actor has one request under way, and repeats it rarely
MOST_ANSWERED = 4096  # connections whose last request is remembered
CORES_PER_THREAD = 2  # the others are for the simulators


class ActRequest(NamedTuple):
    """Observations and recurrent state of `rows` environments."""

    number: int
    rows: int
    arrays: Columns


class InferenceServer:
    """Call `turn` again and again."""

    def __init__(
        self,
        address: str,
        inference: Inference,
        follower: WeightFollower,
        spec: ExperienceSpec,
        policy: PolicyDescription,
        most_count: int,
        metrics: Metrics,
    ) -> None:
        """Binds. `follower` keeps `inference` at the newest weights; `most_count`: environments of an actor. Raises OSError."""
        self.follower, self._inference, self._metrics, self._most_count = follower, inference, metrics, most_count
        self._observation, self._state = observation_parts(spec), state_parts(policy)
        self._parts = [*self._observation, *self._state]
        largest = max(part.bytes(most_count) for part in self._parts)
        limits = max(largest, FRAME_BYTES), UNREAD_PER_ACTOR, UNREAD_PER_ACTOR
        self._server = Server(address, *limits, endpoint=INFERENCE, most_bytes=len(self._parts) * FRAME_BYTES)
        self.address = self._server.address
        self._requests: dict[bytes, ActRequest] = {}  # the newest of each connection, in the order of their arrival
        self._answered: dict[bytes, int] = {}  # by connection, the number of its last request

    @property
    def malformed(self) -> int:
        """Messages that were no requests of this run."""
        return self._server.malformed

    def turn(self, timeout_seconds: float) -> None:
        """Takes what has arrived and answers a batch of it. Waits at most `timeout_seconds` while there is nothing to answer."""
        if not self._requests or self.follower.version < 0:
            wait([self._server, *self.follower.channels], timeout_seconds)
        self.follower.poll()
        for _ in range(MESSAGES_PER_TURN):
            if (arrived := self._server.receive()) is None:
                break
            self._take(*arrived)
        for peer in self._server.expelled():
            self._requests.pop(peer, None)
        if self.follower.version >= 0:  # no action before there are weights
            self._answer(self._batch())

    def warm_up(self) -> None:
        """Computes once, so that what a device loads at its first pass delays no actor."""
        self._infer({part.name: np.zeros((self._most_count, *part.shape), part.dtype) for part in self._parts})

    def close(self) -> None:
        self._server.close()
        self.follower.close()

    def _take(self, peer: bytes, message: object, raw: Sequence[bytes]) -> None:
        if not isinstance(message, Infer):
            self._server.offence(peer, "messages that an inference process does not take")
        elif message.count == 0:
            if self.follower.version >= 0:
                self._server.send(peer, self._inferred(message.number))
        elif message.number != self._answered.get(peer):  # otherwise its answer is on the way
            arrays = read_arrays(self._parts, raw, message.count) if message.count <= self._most_count else None
            if arrays is None:
                self._server.offence(peer, "observations that are not those of this run's actors")
            else:
                self._requests[peer] = ActRequest(message.number, message.count, arrays)

    def _batch(self) -> dict[bytes, ActRequest]:
        """The oldest requests."""
        batch: dict[bytes, ActRequest] = {}
        rows = 0
        for peer, request in self._requests.items():
            if batch and rows + request.rows > MOST_ROWS:
                break
            batch[peer] = request
            rows += request.rows
        return batch

    def _answer(self, batch: dict[bytes, ActRequest]) -> None:
        if not batch:
            return
        requests = batch.values()
        with self._metrics.phase("infer"):
            together = {part.name: np.concatenate([each.arrays[part.name] for each in requests]) for part in self._parts}
            outputs, after = self._infer(together)
        parts = [Part(OUTPUTS, outputs.shape[1:], FLOAT), *self._state]
        first = 0
        for peer, request in batch.items():
            rows = slice(first, first := first + request.rows)
            arrays = {OUTPUTS: outputs[rows]} | {name: array[rows] for name, array in after.items()}
            self._server.send(peer, self._inferred(request.number), send_arrays(parts, arrays))  # it may be gone
            del self._requests[peer]
            self._remember(peer, request.number)
        self._metrics.count("rows", first)
        self._metrics.mean("rows_per_pass", first)

    def _infer(self, arrays: Columns) -> tuple[np.ndarray, Columns]:
        observation, state = ({part.name: arrays[part.name] for part in parts} for parts in (self._observation, self._state))
        return self._inference(observation, state)

    def _inferred(self, number: int) -> Inferred:
        return Inferred(number, self.follower.version, max(self.follower.newest, self.follower.version))

    def _remember(self, peer: bytes, number: int) -> None:
        if len(self._answered) >= MOST_ANSWERED:
            self._answered.clear()  # a request that is repeated just now is answered twice
        self._answered[peer] = number


def describe(record: Record) -> str:
    """The throughput line of the log."""
    rows, batch, busy = record.get("rows_per_second", 0), record.get("rows_per_pass", 0), record.get("infer_fraction", 0)
    return (
        f"{rows:,.0f} rows/s · {batch:.1f} rows a pass · computing {busy:.0%}"
        f" · {follow.describe(record)}{follow.describe_rejected(record)}"
    )


def measure(server: InferenceServer, lifetime: Lifetime) -> None:
    follow.gauge(lifetime.metrics, server.follower)
    lifetime.metrics.gauge("malformed", server.malformed)


def open_server(run_dir: RunDir, lifetime: Lifetime) -> InferenceServer | None:
    """Waits for the learner's addresses; None where the process stops meanwhile. Raises ValueError (also CheckpointError,
    DeviceError, SpecError and UnknownName), OSError."""
    settings = read_document(run_dir.settings(lifetime.name), InferenceProcess)
    spec, algorithm = read_spec(read_bytes(run_dir.spec)), make_algorithm(read_algorithm(settings.algorithm))
    policy = run_description(run_dir, algorithm, spec)
    threads = settings.threads or max(core_count() // CORES_PER_THREAD, 1)
    inference = open_inference(algorithm, spec, policy, settings.precision, threads, settings.device, MOST_ROWS)

    def beat() -> bool:
        lifetime.beat()
        return lifetime.stopping

    addresses = [run_dir.wait_for_endpoint(endpoint, beat) for endpoint in ("weights", "payload")]
    if None in addresses:
        return None
    announcements, payloads = map(str, addresses)
    follower = WeightFollower(announcements, payloads, inference, lifetime.keys)
    own = run_dir.local_address(INFERENCE)
    return InferenceServer(own, inference, follower, spec, policy, settings.most_count, lifetime.metrics)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m learner.serving.inference", description="Acts for the actors of a machine.")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("name", help="of this process: inference, or inference-0 on host-0")
    arguments = parser.parse_args()
    run_dir = RunDir(arguments.run_dir)
    supervised = arguments.name == INFERENCE  # that of a host is watched by the host's agent
    lifetime = Lifetime(arguments.name, run_dir, describe, reports=supervised)
    try:
        if (server := open_server(run_dir, lifetime)) is not None:
            server.warm_up()
            run_dir.write_endpoint(INFERENCE, server.address, local=True)
    except (ValueError, OSError) as error:
        say(f"{arguments.name}: {error}")
        return 2
    if server is not None:
        lifetime.measure = partial(measure, server, lifetime)
        lifetime.ready()
        while not lifetime.stopping:
            server.turn(WAIT_SECONDS)
            lifetime.beat(resting=lifetime.paused)
        server.close()
    lifetime.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
