"""The inference process and its clients: which rows are computed together, by which version, and what happens to bad requests."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from learner.description import PolicyDescription
from learner.inference.remote import InferenceError, RemoteInference, StoppedWaiting, observation_parts, send_arrays, state_parts
from learner.serving.inference import MOST_ROWS, InferenceServer, describe
from tests.harness.address import local_address
from tests.harness.waiting import wait_until
from tests.learner.examples import image, make_spec, vector
from transport.experience import Columns
from transport.messages.replay import Refused
from transport.messages.weights import FetchWeights, Infer, Inferred
from transport.metrics import Metrics
from transport.sockets.client import Client

SPEC = make_spec(vector(), image(shape=(4, 4)))
POLICY = PolicyDescription({}, state={"memory/h": (3,)})
MOST = 8
OUTPUTS = 2


class Follower:
    """Has the version that a test gives it."""

    def __init__(self, version: int) -> None:
        self.version, self.newest, self.rejected, self.channels = version, version, 0, ()

    def poll(self) -> bool:
        return False

    def close(self) -> None: ...


class Network:
    """Outputs and next state say which row they were computed from, and by which version."""

    def __init__(self, follower: Follower) -> None:
        self.state, self.follower = POLICY.state, follower
        self.passes: list[int] = []

    def __call__(self, observation: Columns, state: Columns) -> tuple[np.ndarray, Columns]:
        rows = observation["vector"][:, 0, 0]
        assert all(len(array) == len(rows) for array in (*observation.values(), *state.values()))
        self.passes.append(len(rows))
        outputs = np.stack([rows, np.full(len(rows), self.follower.version)], 1).astype(np.float32)
        return outputs, {"memory/h": state["memory/h"] + rows[:, None]}


class Machine:
    """An inference process, as far as it needs no process of its own."""

    def __init__(self, folder: Path, version: int = 1) -> None:
        self.address = local_address(folder, "inference")
        self.follower = Follower(version)
        self.network = Network(self.follower)
        self.closing: list[Any] = []
        self.open()

    def open(self) -> None:
        network: Any = self.network
        follower: Any = self.follower
        self.metrics = Metrics()
        self.server = InferenceServer(self.address, network, follower, SPEC, POLICY, MOST, self.metrics)

    def actor(self, stopping: Any = lambda: False) -> RemoteInference:
        self.closing.append(made := RemoteInference(POLICY, SPEC, stopping).connect(self.address))
        return made

    def client(self) -> Client:
        self.closing.append(made := Client(self.address))
        return made

    def turn(self, *clients: Client) -> list[tuple[Any, list[bytes]]]:
        """Turns until each client has an answer."""
        found: dict[Client, tuple[Any, list[bytes]]] = {}

        def answered() -> bool:
            for client in clients:
                if client not in found and (arrived := client.receive()) is not None:
                    found[client] = arrived
            return len(found) == len(clients)

        self.until(answered, "answers")
        return [found[client] for client in clients]

    def take(self, count: int) -> None:
        """Turns until so many requests wait."""
        self.until(lambda: len(self.server._requests) == count, f"{count} requests")

    def until(self, true: Callable[[], bool], what: str) -> None:
        def turned() -> bool:
            self.server.turn(0.01)
            return true()

        wait_until(turned, what=what, turn_seconds=0.0)

    def serve(self, until: threading.Event) -> None:
        while not until.is_set():
            self.server.turn(0.01)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for each in made.closing:
        each.close()
    made.server.close()


@pytest.fixture
def serving(machine: Machine) -> Iterator[Machine]:
    """The same, and a thread turns it."""
    stop = threading.Event()
    thread = threading.Thread(target=machine.serve, args=(stop,))
    thread.start()
    yield machine
    stop.set()
    thread.join()


def arrays(values: Sequence[float]) -> tuple[Columns, Columns]:
    """Observations whose rows have these values, and a state of tenths of them."""
    rows = np.array(values, np.float32)
    observation = {field.name: np.zeros((len(rows), SPEC.stack, *field.shape), field.dtype) for field in SPEC.fields}
    observation["vector"][:, 0, 0] = rows
    return observation, {"memory/h": np.repeat(rows[:, None] / 10, 3, 1)}


def request(number: int, *values: float) -> tuple[Infer, list[memoryview]]:
    observation, state = arrays(values)
    raw = [*send_arrays(observation_parts(SPEC), observation), *send_arrays(state_parts(POLICY), state)]
    return Infer(number, len(values)), raw


def outputs(raw: list[bytes]) -> list[list[float]]:
    found: list[list[float]] = np.frombuffer(raw[0], np.float32).reshape(-1, OUTPUTS).tolist()
    return found


def test_requests_that_wait_are_answered_by_one_pass_and_each_gets_its_own_rows(machine: Machine) -> None:
    machine.follower.version = -1
    first, second, third = (machine.client() for _ in range(3))
    for client, values in ((first, [1, 2]), (second, [3]), (third, [4, 5, 6])):
        client.send(*request(7, *values))
    machine.take(3)
    assert machine.network.passes == [], "there are no weights yet"
    machine.follower.version, machine.follower.newest = 4, 6
    answers = machine.turn(first, second, third)
    assert machine.network.passes == [6]
    assert [message for message, _ in answers] == [Inferred(7, 4, 6)] * 3
    assert [outputs(raw) for _, raw in answers] == [[[1, 4], [2, 4]], [[3, 4]], [[4, 4], [5, 4], [6, 4]]]
    state = np.frombuffer(answers[2][1][1], np.float32).reshape(-1, 3)
    np.testing.assert_allclose(state, np.repeat([[4.4], [5.5], [6.6]], 3, 1), rtol=1e-6)
    record = machine.metrics.record()
    assert (record["rows"], record["rows_per_pass"]) == (6, 6) and "6.0 rows a pass" in describe(record)


def test_a_pass_has_at_most_so_many_rows_and_the_oldest_requests_come_first(machine: Machine) -> None:
    machine.follower.version = -1
    clients = [machine.client() for _ in range(MOST_ROWS // MOST + 1)]
    for client in clients:
        client.send(*request(1, *range(MOST)))
    machine.take(len(clients))
    machine.follower.version = 1
    machine.turn(*clients)
    assert machine.network.passes == [MOST_ROWS, MOST]


def test_a_repeated_request_is_computed_once_and_a_newer_one_replaces_it(machine: Machine) -> None:
    machine.follower.version = -1
    client = machine.client()
    for number, value in ((1, 1.0), (1, 1.0), (2, 2.0)):
        client.send(*request(number, value))
    machine.until(lambda: any(each.number == 2 for each in machine.server._requests.values()), "the newer request")
    machine.follower.version = machine.follower.newest = 3
    [(message, raw)] = machine.turn(client)
    assert (message.number, outputs(raw), machine.network.passes) == (2, [[2.0, 3.0]], [1])
    client.send(*request(2, 2.0))  # on its way when the answer came
    client.send(Infer(2, 0))
    assert machine.turn(client) == [(Inferred(2, 3, 3), [])] and machine.network.passes == [1]
    client.send(*request(3, 3.0))
    [(message, raw)] = machine.turn(client)
    assert (message.number, outputs(raw), machine.network.passes) == (3, [[3.0, 3.0]], [1, 1])


BAD = {
    "a part too few": lambda: (Infer(1, 1), request(1, 1.0)[1][:-1]),
    "a short part": lambda: (Infer(1, 2), request(1, 1.0)[1]),
    "too many environments": lambda: request(1, *range(MOST + 1)),
    "a message of another kind": lambda: (FetchWeights(), []),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_client_that_sends_what_it_may_not_is_refused_and_the_others_are_answered(machine: Machine, kind: str) -> None:
    bad, good = machine.client(), machine.client()
    for _ in range(30):
        bad.send(*BAD[kind]())
    [(message, _)] = machine.turn(bad)
    assert isinstance(message, Refused) and "quarantine" in message.reason and "\n" not in message.reason
    good.send(*request(1, 5.0))
    [(_, raw)] = machine.turn(good)
    assert outputs(raw) == [[5.0, 1.0]] and machine.network.passes == [1]


def test_an_actor_that_is_gone_disturbs_no_other(machine: Machine) -> None:
    machine.follower.version = -1
    gone, other = Client(machine.address), machine.client()
    for client in (gone, other):
        client.send(*request(1, 2.0))
    machine.take(2)
    gone.close()
    machine.follower.version = 1
    [(_, raw)] = machine.turn(other)
    assert outputs(raw) == [[2.0, 1.0]] and machine.network.passes == [2]
    assert not machine.server._requests


def test_an_actor_has_the_version_that_has_computed_its_rows(serving: Machine) -> None:
    actor = serving.actor()
    for version in (1, 2, 5):
        serving.follower.version = serving.follower.newest = version
        found, after = actor(*arrays([7.0, 8.0]))
        assert found.tolist() == [[7.0, version], [8.0, version]] and (actor.version, actor.lag) == (version, 0)
        np.testing.assert_allclose(after["memory/h"][:, 0], [7.7, 8.8], rtol=1e-6)
        found += 1
        after["memory/h"] += 1  # an acting policy may do so
    serving.follower.newest = 9
    actor(*arrays([1.0]))
    assert actor.lag == 4


def test_an_actor_that_asks_for_nothing_hears_of_new_versions_too(serving: Machine) -> None:
    """Some algorithms act at random until version 1, and ask for no outputs until then."""
    serving.follower.version = -1
    actor = serving.actor()
    assert not actor.poll() and actor.version == -1
    for version in (0, 1):
        serving.follower.version = version
        wait_until(lambda: actor.poll(), what=f"version {version}")
        assert actor.version == version
    assert serving.network.passes == []


def test_an_expected_version_is_asked_for_until_it_is_there(serving: Machine) -> None:
    actor = serving.actor()
    assert actor.expect(2)
    serving.follower.version = 2

    def there() -> bool:
        actor.wait(0.05)
        actor.poll()
        return not actor.expect(2)

    wait_until(there, what="version 2")


def test_a_call_outlasts_the_inference_process_and_is_answered_by_the_next_one(machine: Machine) -> None:
    beats: list[float] = []

    def beat() -> bool:
        beats.append(time.monotonic())
        return False

    actor = machine.actor(beat)
    found: list[np.ndarray] = []
    thread = threading.Thread(target=lambda: found.append(actor(*arrays([3.0]))[0]))
    machine.follower.version = -1  # it takes the request and never answers
    thread.start()
    machine.take(1)
    machine.server.close()
    machine.follower.version = 2
    machine.open()
    machine.until(lambda: not thread.is_alive(), "the answer")
    assert found[0].tolist() == [[3.0, 2.0]] and machine.network.passes == [1]
    assert len(beats) > 3, "it reports while it waits"


def test_a_process_that_stops_does_not_wait_for_an_answer(tmp_path: Path) -> None:
    actor = RemoteInference(POLICY, SPEC, lambda: True).connect(local_address(tmp_path, "no-server"))
    with pytest.raises(StoppedWaiting):
        actor(*arrays([1.0]))
    actor.close()


def test_weights_are_with_the_inference_process_alone(machine: Machine) -> None:
    actor = machine.actor()
    with pytest.raises(InferenceError, match=r"--actors.inference batched"):
        _ = actor.weights
    with pytest.raises(InferenceError):
        actor.load({})
