"""Weights reach whoever comes late, wait for nobody, and are adopted whole or not at all."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from torch import nn

from actors.config import ActorsConfig, EnvConfig
from learner.inference.module import Module
from learner.serving.publish import WeightPublisher
from learner.weights.checkpoint import pack
from learner.weights.follow import WeightFollower
from replay.config import ReplayConfig
from tests.chaos.rows import Row
from tests.harness.checker import Checker, check_log
from tests.harness.fleet import Fleet
from tests.harness.proxy import TcpProxy
from tests.harness.waiting import ROOT, Pauses, wait_until
from transport.messages.weights import Announce, FetchWeights, Weights
from transport.sockets.channel import cut
from transport.sockets.server import Announcer, Server

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
SIZE = 1000  # of a layer: 4 MB
LATE_SECONDS = 2.0


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as made:
        yield made


class Learner:
    """A publisher that publishes each time `turn` finds that a tenth of a second is over."""

    def __init__(self, stack: ExitStack, size: int) -> None:
        self.module = nn.Linear(size, size)
        self.publisher = WeightPublisher("tcp://127.0.0.1:*", "tcp://127.0.0.1:*", 7)
        stack.callback(self.publisher.close)
        self.version = -1
        self.due = 0.0
        self.seconds: list[float] = []  # that each publication took

    def turn(self) -> None:
        if time.monotonic() < self.due:
            return
        self.due = time.monotonic() + 0.1
        self.version += 1
        with torch.no_grad():
            self.module.weight.fill_(self.version)
        begun = time.perf_counter()
        self.publisher.publish(self.module, self.version)
        self.seconds.append(time.perf_counter() - begun)


@pytest.mark.row(
    "R14", "a process that acts joins late", "50 times: newest announced version within 2 s, never acts on untrained weights"
)
def test_a_process_that_joins_late_has_the_newest_weights_soon(row: Row, stack: ExitStack) -> None:
    times = row.times(10, 50)
    learner = Learner(stack, 200)
    slowest, torn = 0.0, 0
    for _ in range(times):
        learner.turn()
        announced, began = learner.version, time.monotonic()
        module = nn.Linear(200, 200)
        follower = WeightFollower(*learner.publisher.addresses, Module(module))

        def has_it(follower: WeightFollower = follower, announced: int = announced) -> bool:
            learner.turn()
            follower.wait(0.01)
            follower.poll()
            return follower.version >= announced

        wait_until(has_it, what="the weights")
        slowest = max(slowest, time.monotonic() - began)
        torn += bool((module.weight != follower.version).any())
        follower.close()
    row.measured(times=times, slowest_seconds=slowest, torn=torn, versions_meanwhile=learner.version)
    assert slowest <= row.limit(LATE_SECONDS) and torn == 0


@pytest.mark.row(
    "R14", "an actor starts in mid-run", "50 times: never acts on untrained weights, nor on older ones than were out"
)
def test_an_actor_that_starts_late_acts_under_what_was_out(row: Row, tmp_path: Path, stack: ExitStack) -> None:
    times = row.times(0, 4, 50)
    env = EnvConfig(id="tests.chaos.simulator:slow_vector", chunk_length=16)
    replay = ReplayConfig(min_size=1, samples_per_insert_low=0.0, samples_per_insert_high=1e9, capacity=400_000)
    fleet = Fleet(tmp_path / "run", env, ActorsConfig(count=times, envs_per_actor=1, chunk_seconds=0.2), replay, 3)
    stack.callback(fleet.close)
    fleet.start_replay()
    wait_until(lambda: fleet.run_dir.endpoint("replay") is not None, what="replay bound")
    for _ in range(3):
        fleet.publish()
    out: dict[int, int] = {}
    for index in range(times):
        fleet.publish()
        out[index] = fleet.version
        fleet.start_actor(index)
        wait_until(lambda index=index: "steps/s" in fleet.log(f"actor-{index}"), 60, "the actor acts")  # type: ignore[misc]
        assert fleet.stop(f"actor-{index}") == 0
    assert fleet.stop("replay") == 0
    checker = Checker(fleet.spec)
    check_log(fleet.run_dir, fleet.spec, checker)
    oldest = {identity: min(versions.values()) for identity, versions in checker.versions.items()}
    row.measured(times=times, steps=len(checker.seen), versions_behind=max(out[index] - oldest[index] for index in out))
    assert len(oldest) == times and all(oldest[index] >= out[index] > 0 for index in out)


@pytest.mark.row(
    "R15",
    "a process that follows weights is stopped (SIGSTOP)",
    "time to publish (p99) changes < 5%, memory of the learner is flat; afterwards it goes on with the newest, skipping",
)
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_peer_that_does_not_read_slows_no_other(row: Row, tmp_path: Path, stack: ExitStack) -> None:
    """Stopped and not, in turn, so that what else the machine does falls upon both; the best of three rounds, likewise."""
    seconds = row.times(0, 30, 60)
    learner = Learner(stack, SIZE)
    adopted = tmp_path / "versions"
    command = [sys.executable, "-m", "tests.chaos.follower", *learner.publisher.addresses, str(SIZE), str(adopted)]
    follower = stack.enter_context(subprocess.Popen(command, cwd=ROOT))
    stack.callback(follower.kill)

    def newest() -> int:
        return int(adopted.read_text().split()[-1]) if adopted.exists() and adopted.read_text().split() else -1

    def until_it_follows() -> None:
        then = learner.version

        def follows() -> bool:
            learner.turn()
            return newest() > then

        wait_until(follows, what="it follows")

    memory = {"usual": 0, "stopped": 0}  # at most
    process = psutil.Process()

    def publish_for(seconds: float, phase: str) -> list[float]:
        learner.seconds, end = [], time.monotonic() + seconds
        while time.monotonic() < end:
            learner.due = 0.0
            learner.turn()
            memory[phase] = max(memory[phase], process.memory_info().rss)
            time.sleep(0.002)
        return learner.seconds

    until_it_follows()
    publish_for(1, "usual")
    changes = []
    for _ in range(3):
        usual, stopped = [], []
        for _ in range(2):
            usual += publish_for(seconds / 20, "usual")
            follower.send_signal(signal.SIGSTOP)
            stopped += publish_for(seconds / 20, "stopped")
            follower.send_signal(signal.SIGCONT)
        changes.append(float(np.percentile(stopped, 99) / np.percentile(usual, 99)) - 1)
    follower.send_signal(signal.SIGSTOP)
    published = learner.version
    publish_for(seconds, "stopped")
    missed = learner.version - published
    last = newest()
    grown = memory["stopped"] - memory["usual"]
    follower.send_signal(signal.SIGCONT)
    until_it_follows()
    versions = [int(version) for version in adopted.read_text().split()]
    skipped = sum(version > last for version in range(published, published + missed)) - sum(
        last < version < published + missed for version in versions
    )
    row.measured(
        seconds=seconds,
        p99_change=min(changes),
        p99_changes=" ".join(f"{change:+.0%}" for change in changes),
        grown_bytes=grown,
        missed_versions=missed,
        skipped_versions=skipped,
    )
    assert versions == sorted(versions) and skipped > 0
    assert grown <= 3 * 4 * SIZE * SIZE, "no more than the payloads that a reader may be owed"
    assert min(changes) < 0.05


@pytest.mark.row("R16", "one byte of weights is flipped on the way", "1000 payloads: 1000 rejected, 0 adopted")
def test_damaged_weights_are_never_adopted(row: Row, stack: ExitStack) -> None:
    times = row.times(200, 1000)
    chance = random.Random(16)
    module, good = nn.Linear(20, 20), nn.Linear(20, 20)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    payload = pack(good.state_dict())
    answer = Weights(7, 1, hashlib.sha256(payload).hexdigest())
    announcer, server = Announcer("tcp://127.0.0.1:*"), Server("tcp://127.0.0.1:*")
    follower = WeightFollower(announcer.address, server.address, Module(module))
    for end in (announcer, server, follower):
        stack.enter_context(closing(end))
    served = 0

    def serves(damaged: bool) -> None:
        nonlocal served
        announcer.announce(Announce(7, 1, len(payload), answer.sha256))
        follower.poll()
        while (arrival := server.receive(0.001)) is not None:
            assert isinstance(arrival[1], FetchWeights)
            sent = bytearray(payload)
            if damaged:
                sent[chance.randrange(len(sent))] ^= 1 << chance.randrange(8)
            server.send(arrival[0], answer, cut(bytes(sent)))
            served += 1

    def all_rejected() -> bool:
        serves(damaged=served < times)
        return follower.rejected >= times or follower.version >= 0

    deadline = time.monotonic() + 120
    while not all_rejected():
        assert time.monotonic() < deadline
    rejected, adopted = follower.rejected, int(follower.version >= 0)
    untouched = all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    row.measured(payloads=times, rejected=rejected, adopted=adopted)
    assert (rejected, adopted) == (times, 0) and untouched

    def whole_ones_are_welcome() -> bool:
        serves(damaged=False)
        return follower.version == 1

    wait_until(whole_ones_are_welcome, what="undamaged weights are adopted")


@pytest.mark.row(
    "R7",
    "weights over a slow line that loses packets",
    "0 flaps, the newest arrives, and nothing is sent in vain while it is under way",
)
def test_weights_come_over_a_slow_line(row: Row, stack: ExitStack) -> None:
    size = row.times(300, 1300)  # of a layer: 0.4 or 7 MB
    learner = Learner(stack, size)
    learner.turn()
    announce, serve = learner.publisher.addresses
    proxy = stack.enter_context(TcpProxy(serve))
    proxy.set(delay_seconds=0.05, jitter_seconds=0.01, bytes_per_second=177_000, stall_probability=0.01, stall_seconds=0.1)
    module = nn.Linear(size, size)
    follower = WeightFollower(announce, proxy.address, Module(module))
    stack.callback(follower.close)
    began = time.monotonic()

    def arrived() -> bool:
        follower.wait(0.05)
        return follower.poll()

    with Pauses() as pauses:
        wait_until(arrived, 300, "the weights")
    seconds = time.monotonic() - began
    payload = 4 * size * (size + 1)
    row.measured(payload_bytes=payload, seconds=seconds, passed_bytes=proxy.passed_bytes, flaps=proxy.connections - 1)
    assert (module.weight == 0).all()
    if pauses.longest < 1:  # else a heartbeat may have been late
        assert proxy.connections == 1 and proxy.passed_bytes < 1.1 * payload + 100_000
