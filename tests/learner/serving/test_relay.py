"""A relay passes weights on as they came: once for all its readers, and checked by them as the learner's own."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import pytest

from deploy.children import child_environment, python_command
from learner.description import PolicyDescription
from learner.serving.publish import WeightPublisher
from learner.serving.relay import SERVED, Relay, of_learner
from learner.weights.follow import WeightFollower
from tests.harness.address import local_address
from tests.harness.waiting import wait_until
from tests.learner.weights.test_follow import GOOD, NOT_A_NUMBER, STRANGE, digest, flipped, make_module
from transport.messages.weights import Announce, FetchWeights, Weights
from transport.run_dir import RunDir
from transport.sockets.channel import cut
from transport.sockets.server import Announcer, Server

MANY = 32
STATE = {name: value.numpy() for name, value in make_module(0.0).state_dict().items()}
POLICY = PolicyDescription({name: (value.shape, value.dtype.name) for name, value in STATE.items()})


class Reader:
    """Stands in for an actor's inference."""

    def __init__(self) -> None:
        self.weights: Mapping[str, np.ndarray] = STATE

    def load(self, weights: Mapping[str, np.ndarray]) -> None:
        POLICY.check(weights)
        self.weights = weights

    @property
    def values(self) -> set[float]:
        floats = [value for value in self.weights.values() if value.dtype.kind == "f"]
        return {float(number) for value in floats for number in np.unique(value)}


class Sockets:
    """Addresses in a folder, and what is open there."""

    def __init__(self, folder: Path) -> None:
        self.learner = local_address(folder, "l-weights"), local_address(folder, "l-payload")
        self.relay = local_address(folder, "weights"), local_address(folder, "payload")
        self.opened: list[WeightPublisher | WeightFollower | Relay | Announcer | Server] = []

    def publisher(self, incarnation: int = 7) -> WeightPublisher:
        self.opened.append(made := WeightPublisher(*self.learner, incarnation))
        return made

    def open_relay(self) -> Relay:
        self.opened.append(made := Relay(self.learner, self.relay, POLICY))
        return made

    def followers(self, count: int) -> list[tuple[WeightFollower, Reader]]:
        readers = [Reader() for _ in range(count)]
        made = [(WeightFollower(*self.relay, reader), reader) for reader in readers]
        self.opened += [follower for follower, _ in made]
        return made

    def close(self, end: WeightPublisher | WeightFollower | Relay) -> None:
        self.opened.remove(end)
        end.close()


@pytest.fixture
def sockets(tmp_path: Path) -> Iterator[Sockets]:
    made = Sockets(tmp_path)
    yield made
    for end in made.opened:
        end.close()


def reach(done: Callable[[], bool], what: str, *polled: WeightFollower | Relay) -> None:
    def turned() -> bool:
        for end in polled:
            end.turn(0) if isinstance(end, Relay) else end.poll()
        time.sleep(0.001)
        return done()

    wait_until(turned, what=what)


def test_a_relay_passes_on_the_learners_incarnation_version_and_bytes(sockets: Sockets) -> None:
    publisher, relay, [(follower, reader)] = sockets.publisher(), sockets.open_relay(), sockets.followers(1)
    publisher.publish(make_module(4.0), 4)
    reach(lambda: follower.version == 4, "version 4", relay, follower)
    assert reader.values == {4.0} and follower._incarnation == 7 and follower.rejected == 0
    wait_until(lambda: publisher.payloads == relay.server.payloads == 1, what="both are counted")  # once they are sent


def test_a_new_incarnation_of_the_learner_is_passed_on_even_with_the_same_version_or_a_lower_one(sockets: Sockets) -> None:
    first, relay, [(follower, reader)] = sockets.publisher(7), sockets.open_relay(), sockets.followers(1)
    first.publish(make_module(30.0), 30)
    reach(lambda: follower.version == 30, "version 30", relay, follower)

    def arrived() -> bool:
        return reader.values == {value}

    for incarnation, version, value in ((8, 30, 5.0), (9, 2, 6.0)):
        sockets.close(first)
        first = sockets.publisher(incarnation)
        first.publish(make_module(value), version)
        reach(arrived, f"incarnation {incarnation}", relay, follower)
        assert follower.version == version and follower._incarnation == incarnation


@pytest.mark.parametrize(
    ("payload", "sha256"),
    [
        pytest.param(flipped(GOOD), digest(GOOD), id="flipped-byte"),
        pytest.param(GOOD[:-4], digest(GOOD[:-4]), id="cut-short-and-signed"),
        pytest.param(NOT_A_NUMBER, digest(NOT_A_NUMBER), id="not-finite"),
        pytest.param(STRANGE, digest(STRANGE), id="another-network"),
    ],
)
def test_a_relay_serves_no_broken_weights(sockets: Sockets, payload: bytes, sha256: str) -> None:
    announcer, server = Announcer(sockets.learner[0]), Server(sockets.learner[1])
    sockets.opened += [announcer, server]
    relay, [(follower, reader)] = sockets.open_relay(), sockets.followers(1)

    def serve(answer: Weights, data: bytes, done: Callable[[], bool]) -> None:
        def turned() -> bool:
            announcer.announce(Announce(answer.incarnation, answer.version, len(data), answer.sha256))
            while (arrival := server.receive(0.005)) is not None:
                assert isinstance(arrival[1], FetchWeights)
                server.send(arrival[0], answer, cut(data))
            return done()

        reach(turned, "the payload was looked at", relay, follower)

    serve(Weights(7, 1, sha256), payload, lambda: relay.follower.rejected > 0)
    assert relay.follower.version == follower.version == -1 and relay.server.payloads == 0
    serve(Weights(7, 1, digest(GOOD)), GOOD, lambda: follower.version == 1)
    assert reader.values == {9.0} and follower.rejected == 0


def test_weights_that_an_actor_expects_arrive_although_it_asked_before_the_relay_had_them(
    sockets: Sockets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("learner.weights.follow.FETCH_AGAIN_SECONDS", 1e9)  # only the announcement makes it ask again
    publisher, relay, [(follower, _)] = sockets.publisher(), sockets.open_relay(), sockets.followers(1)
    publisher.publish(make_module(0.0), 0)
    reach(lambda: follower.version == 0, "version 0", relay, follower)
    asked = follower._client.sent_bytes
    assert follower.expect(1) and follower._client.sent_bytes > asked, "replay has named version 1"
    publisher.publish(make_module(1.0), 1)
    reach(lambda: follower.version == 1, "version 1", relay, follower)


class RelayProcess:
    """The process itself, in a folder as a host has it."""

    def __init__(self, sockets: Sockets, folder: Path) -> None:
        self.run = RunDir(folder)
        self.run.create()
        self.run.policy.write_bytes(msgspec.json.encode(POLICY))
        names = (*map(of_learner, SERVED), *SERVED)
        for name, address in zip(names, (*sockets.learner, *sockets.relay), strict=True):
            (folder / "endpoints" / f"{name}.json").write_text(json.dumps({"address": address}))
        self.start()

    def start(self) -> None:
        command = python_command("learner.serving.relay", str(self.run.path), "relay-0")
        self.process = subprocess.Popen(command, env=child_environment(), stdout=subprocess.DEVNULL)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@pytest.fixture
def process(sockets: Sockets, tmp_path: Path) -> Iterator[RelayProcess]:
    made = RelayProcess(sockets, tmp_path / "host")
    yield made
    made.kill()


def test_the_learner_sends_one_payload_per_version_to_a_relay_of_many_readers(sockets: Sockets, process: RelayProcess) -> None:
    publisher, pairs = sockets.publisher(), sockets.followers(MANY)
    followers = [follower for follower, _ in pairs]

    def publish(version: int) -> None:
        publisher.publish(make_module(float(version)), version)
        reach(lambda: all(follower.version == version for follower in followers), f"version {version}", *followers)

    def count(payloads: int) -> None:
        """The publisher counts a payload once it has sent it, which may be after a follower has it."""
        wait_until(lambda: publisher.payloads >= payloads, what="it is counted")
        assert publisher.payloads == payloads

    for version in range(6):
        publish(version)
        count(version + 1)
    assert all(reader.values == {5.0} for _, reader in pairs)
    process.kill()
    publisher.publish(make_module(6.0), 6)
    for _ in range(50):
        assert not any(follower.poll() for follower in followers), "they keep what they have"
    process.start()
    reach(lambda: all(follower.version == 6 for follower in followers), "the newest version", *followers)
    count(7)
    publish(7)
    count(8)
    assert [follower.rejected for follower in followers] == [0] * MANY
