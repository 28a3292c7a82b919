"""Weights over real sockets: all followers get the newest, and no damaged ones are ever adopted."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import nn

from learner.inference.module import Module
from learner.serving.publish import WeightPublisher
from learner.weights.checkpoint import pack
from learner.weights.follow import WeightFollower
from tests.harness.address import local_address
from tests.harness.waiting import wait_until
from transport.messages.weights import Announce, FetchWeights, Weights
from transport.sockets.channel import cut
from transport.sockets.client import Client, Listener
from transport.sockets.server import Announcer, Server


def make_module(value: float, size: int = 3) -> nn.Module:
    module = nn.Sequential(nn.Linear(size, 2), nn.BatchNorm1d(2))
    with torch.no_grad():
        for tensor in [*module.parameters(), *(buffer for buffer in module.buffers() if buffer.is_floating_point())]:
            tensor.fill_(value)
    return module


def values(module: nn.Module) -> set[float]:
    """What the floats of a module are; more than one value means that two versions are mixed."""
    return {float(number) for tensor in module.state_dict().values() if tensor.is_floating_point() for number in tensor.unique()}


class Link:
    """Sockets in a folder; everything is closed at the end."""

    def __init__(self, folder: Path) -> None:
        self.announce, self.payload = local_address(folder, "weights"), local_address(folder, "payload")
        self.opened: list[WeightFollower | WeightPublisher | Server | Announcer | Client | Listener] = []

    def publisher(self, incarnation: int = 7) -> WeightPublisher:
        self.opened.append(WeightPublisher(self.announce, self.payload, incarnation))
        return self.opened[-1]  # type: ignore[return-value]

    def follower(self, module: nn.Module) -> WeightFollower:
        self.opened.append(WeightFollower(self.announce, self.payload, Module(module)))
        return self.opened[-1]  # type: ignore[return-value]

    def close(self, end: WeightPublisher) -> None:
        self.opened.remove(end)
        end.close()


class Forger:
    """Stands in for the publisher and serves what the test sets."""

    def __init__(self, link: Link) -> None:
        self._announcer, self._server = Announcer(link.announce), Server(link.payload)
        link.opened += [self._announcer, self._server]
        self.served = 0

    def serve(self, follower: WeightFollower, answer: Weights, payload: bytes, until: Callable[[], bool]) -> None:
        announce = Announce(answer.incarnation, answer.version, len(payload), answer.sha256)

        def turned() -> bool:
            self._announcer.announce(announce)
            while (arrival := self._server.receive(0.005)) is not None:
                assert isinstance(arrival[1], FetchWeights)
                self._server.send(arrival[0], answer, cut(payload))
                self.served += 1
            follower.poll()
            return until()

        wait_until(turned, what="the forgery was looked at")


@pytest.fixture
def link(tmp_path: Path) -> Iterator[Link]:
    made = Link(tmp_path)
    yield made
    for end in made.opened:
        end.close()


def follows(follower: WeightFollower, version: int) -> None:
    def reached() -> bool:
        follower.poll()
        time.sleep(0.001)
        return follower.version == version

    wait_until(reached, what=f"version {version}")


def test_a_follower_that_starts_late_gets_the_newest(link: Link) -> None:
    publisher = link.publisher()
    for version in range(4):
        publisher.publish(make_module(float(version)), version)
    module = make_module(-1.0)
    follower = link.follower(module)
    assert follower.version == -1
    follows(follower, 3)
    assert values(module) == {3.0}
    assert follower.lag == 0 and follower.rejected == 0


def test_a_follower_that_starts_before_the_publisher_gets_the_first(link: Link) -> None:
    module = make_module(-1.0)
    follower = link.follower(module)
    assert follower.poll() is False
    link.publisher().publish(make_module(0.0), 0)
    follows(follower, 0)
    assert values(module) == {0.0}


def test_versions_rise_and_are_whole_while_the_learner_publishes_in_haste(link: Link) -> None:
    publisher = link.publisher()
    modules = [make_module(-1.0) for _ in range(2)]
    followers = [link.follower(module) for module in modules]
    seen: list[list[int]] = [[], []]
    last, version = 150, -1

    def turned() -> bool:
        nonlocal version
        if version < last:
            version += 1
            publisher.publish(make_module(float(version)), version)
        for follower, module, versions in zip(followers, modules, seen, strict=True):
            if follower.poll():
                versions.append(follower.version)
                assert values(module) == {float(follower.version)}, "torn"
        time.sleep(0.001)
        return all(follower.version == last for follower in followers)

    wait_until(turned, 60, "the last version everywhere")
    for versions in seen:
        assert versions == sorted(set(versions)) and len(versions) > 1
    assert [follower.rejected for follower in followers] == [0, 0]


def test_a_poll_that_brings_nothing_says_so_and_lag_counts_what_was_announced(link: Link) -> None:
    publisher = link.publisher()
    publisher.publish(make_module(0.0), 0)
    follower = link.follower(make_module(-1.0))
    follows(follower, 0)
    assert follower.poll() is False
    follower._ask = lambda: None  # type: ignore[method-assign]  # announcements arrive, payloads are not asked for
    publisher.publish(make_module(5.0), 5)
    wait_until(lambda: not follower.poll() and follower.newest == 5, what="the announcement")
    assert follower.version == 0 and follower.lag == 5


def flipped(payload: bytes) -> bytes:
    damaged = bytearray(payload)
    damaged[-1] ^= 1
    return bytes(damaged)


def digest(payload: bytes) -> str:
    return hashlib.sha256(payload).hexdigest()


GOOD = pack(make_module(9.0).state_dict())
NOT_A_NUMBER = safetensors.torch.save(make_module(float("nan")).state_dict())
STRANGE = pack(make_module(9.0, size=4).state_dict())


@pytest.mark.parametrize(
    ("payload", "sha256"),
    [
        pytest.param(flipped(GOOD), digest(GOOD), id="flipped-byte"),
        pytest.param(GOOD, digest(b"something else"), id="wrong-sha256"),
        pytest.param(GOOD[:-4], digest(GOOD), id="cut-short"),
        pytest.param(GOOD[:-4], digest(GOOD[:-4]), id="cut-short-and-signed"),
        pytest.param(b"", digest(b""), id="nothing"),
        pytest.param(NOT_A_NUMBER, digest(NOT_A_NUMBER), id="not-finite"),
        pytest.param(STRANGE, digest(STRANGE), id="another-network"),
    ],
)
def test_broken_weights_are_counted_and_never_adopted(link: Link, payload: bytes, sha256: str) -> None:
    module = make_module(1.0)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    follower, forger = link.follower(module), Forger(link)
    forger.serve(follower, Weights(7, 3, sha256), payload, lambda: follower.rejected > 0)
    assert follower.version == -1 and forger.served >= 1
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    # The same version, whole this time, is still welcome.
    forger.serve(follower, Weights(7, 3, digest(GOOD)), GOOD, lambda: follower.version == 3)
    assert values(module) == {9.0}


def test_older_weights_of_the_same_learner_are_not_taken_back(link: Link) -> None:
    module = make_module(1.0)
    follower, forger = link.follower(module), Forger(link)
    forger.serve(follower, Weights(7, 3, digest(GOOD)), GOOD, lambda: follower.version == 3)
    older = pack(make_module(2.0).state_dict())
    asked = forger.served
    forger.serve(follower, Weights(7, 2, digest(older)), older, lambda: forger.served > asked + 1)
    assert follower.version == 3 and values(module) == {9.0} and follower.rejected == 0


def test_a_new_incarnation_of_the_learner_is_followed_even_to_a_lower_version(link: Link) -> None:
    first = link.publisher(incarnation=7)
    first.publish(make_module(30.0), 30)
    module = make_module(-1.0)
    follower = link.follower(module)
    follows(follower, 30)
    link.close(first)
    second = link.publisher(incarnation=8)
    second.publish(make_module(2.0), 2)
    follows(follower, 2)
    assert values(module) == {2.0} and follower.lag == 0
    second.publish(make_module(3.0), 3)
    follows(follower, 3)


def test_the_thread_that_publishes_has_the_weights_device_as_its_current_one(link: Link, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, torch.device]] = []
    monkeypatch.setattr(
        "learner.devices.capabilities.make_current", lambda device: made.append((threading.current_thread().name, device))
    )
    publisher = link.publisher()
    publisher.publish(module := make_module(1.0), 1)
    follows(link.follower(make_module(-1.0)), 1)
    assert made == [("weights", next(module.parameters()).device)]


def test_a_follower_that_never_reads_slows_no_other(link: Link) -> None:
    publisher = link.publisher()
    heavy = nn.Linear(1000, 1000)  # 4 MB
    publisher.publish(heavy, 0)
    idle = Client(link.payload)
    deaf = Listener(link.announce)
    link.opened += [idle, deaf]
    for _ in range(20):  # asks for 80 MB and takes none of it
        idle.send(FetchWeights())
    module = nn.Linear(1000, 1000)
    follower = link.follower(module)
    follows(follower, 0)
    slowest = 0.0
    for version in range(1, 21):
        begun = time.monotonic()
        publisher.publish(heavy, version)
        slowest = max(slowest, time.monotonic() - begun)
    follows(follower, 20)
    assert slowest < 20, "a publication is a copy and a checksum of 4 MB, whatever the readers do"
    assert np.array_equal(module.weight.detach().numpy(), heavy.weight.detach().numpy())


def test_weights_that_are_not_finite_are_never_announced_and_the_last_good_ones_stay_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publisher = WeightPublisher(local_address(tmp_path, "weights"), local_address(tmp_path, "payload"), 7)
    module = make_module(0.0)
    follower = WeightFollower(*publisher.addresses, Module(module))

    def arrives(version: int) -> None:
        wait_until(lambda: follower.poll() and follower.version == version, what=f"version {version}")

    publisher.publish(make_module(1.0), 1)
    arrives(1)
    publisher.publish(make_module(float("inf")), 2)
    wait_until(lambda: publisher.refused == 1, what="version 2 is refused")
    late = WeightFollower(*publisher.addresses, Module(make_module(0.0)))
    wait_until(lambda: late.poll() and late.version == 1, what="a late follower gets the last finite weights")
    assert late.newest == 1 and values(module) == {1.0}
    assert "policy v2 is not published" in capsys.readouterr().out
    publisher.publish(make_module(3.0), 3)
    arrives(3)
    for end in (follower, late, publisher):
        end.close()
