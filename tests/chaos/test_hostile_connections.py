"""Connections without end, half-open ones, readers that never read: who belongs here is served all the same."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from torch import nn

from learner.inference.module import Module
from learner.serving.publish import WeightPublisher
from learner.weights.follow import WeightFollower
from tests.chaos.raw import Raw
from tests.chaos.rows import Row
from tests.chaos.siege import Siege, percentile
from tests.harness.run import World
from tests.harness.waiting import wait_until
from transport.messages.codec import pack
from transport.messages.weights import FetchWeights
from transport.sockets.limits import raise_descriptor_limit

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
MIB = 1 << 20
DESCRIPTORS = 1024


@pytest.mark.row("S10", "more connections than descriptors", "no abort; served again <=10 s after they close (tcp and ipc)")
@pytest.mark.parametrize(("scheme", "descriptors"), [("tcp", 1024), ("ipc", 16_384)])
def test_more_connections_than_descriptors(row: Row, tmp_path: Path, scheme: str, descriptors: int) -> None:
    row.times(scheme == "tcp", 1)
    if descriptors + 200 > raise_descriptor_limit():
        pytest.skip(f"this machine allows no {descriptors + 200:,} descriptors")
    with Siege(tmp_path, scheme, descriptors=descriptors) as siege:
        honest = siege.honest(60)
        opened: list[Raw] = []
        for _ in range(descriptors + 100):
            with suppress(OSError):
                opened.append(Raw(siege.address, shake=False))
        time.sleep(1)
        assert not siege.dead, siege.text[-300:]
        for raw in opened:
            raw.close()
        began, before = time.monotonic(), honest.acknowledged
        wait_until(lambda: honest.acknowledged > before, what="the honest writer is served again")
        again = time.monotonic() - began
        log = siege.text
        siege.end()
    row.measured(scheme, opened=len(opened), descriptors=descriptors, served_again_s=again, shed=log.count("closed all"))
    row.measured(**siege.outcome)
    assert again <= row.limit(10) and siege.sound


@pytest.mark.row("S10", "more connections than descriptors, at each port of a run", "no process ends; steps and updates go on")
@pytest.mark.skipif(os.name != "posix", reason="ulimit")
def test_no_process_of_a_run_ends_by_connections_without_end(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    world = World(tmp_path, "CartPole-v1", "--deploy.bind 127.0.0.1 --algo dqn --replay.min-size 500 --actors 1".split())
    world.prefix = ["sh", "-c", f'ulimit -n {DESCRIPTORS}; exec "$@"', "sh"]

    def go_on() -> None:
        """Two records more of replay and the learner: the first may be about the time before."""
        for _ in range(2):
            steps, updates = world.status["steps"], world.status["learner"]["updates"] or 0
            world.until(lambda steps=steps: world.status["steps"] > steps, "steps")  # type: ignore[misc]
            world.until(lambda updates=updates: (world.status["learner"]["updates"] or 0) > updates, "updates")  # type: ignore[misc]

    try:
        world.up()
        go_on()
        pids, slowest = world.pids(), 0.0
        for role in ("supervisor", "replay", "weights", "payload"):
            address = world.run_dir.endpoint(role)
            assert address is not None
            opened: list[Raw] = []
            for _ in range(DESCRIPTORS + 100):
                with suppress(OSError):
                    opened.append(Raw(address, shake=False))
            time.sleep(1)
            for raw in opened:
                raw.close()
            began = time.monotonic()
            go_on()
            slowest = max(slowest, time.monotonic() - began)
        assert world.pids() == pids
        assert world.stop() == 0
    finally:
        world.close()
    closed = (tmp_path / "terminal").read_text().count("closed all")
    row.measured("records come every second", descriptors=DESCRIPTORS, two_records_later_s=slowest, closed=closed)
    assert closed >= 4 and slowest <= row.limit(15)


@pytest.mark.row("S11", "500 half-open handshakes", "real actors connect within 5 s")
@pytest.mark.parametrize("scheme", ["tcp", "ipc"])
def test_half_open_handshakes_keep_no_actor_out(row: Row, tmp_path: Path, scheme: str) -> None:
    seconds = row.times(scheme == "tcp", 10, 60)
    with Siege(tmp_path, scheme) as siege:
        half_open = [Raw(siege.address, shake=False) for _ in range(500)]
        for raw in half_open[::2]:
            raw.socket.sendall(b"\xff\x00\x00")  # and no more
        began, slowest, tries = time.monotonic(), 0.0, 0
        while not tries or time.monotonic() - began < seconds:
            asked = time.monotonic()
            honest = siege.honest(1)
            slowest = max(slowest, time.monotonic() - asked)
            tries += 1
            honest.leave()
        for raw in half_open:
            raw.close()
        alive = not siege.dead
    row.measured(scheme, half_open=500, tries=tries, slowest_connect_s=slowest)
    assert alive and slowest < row.limit(5)


@pytest.mark.row("S12", "100 listeners and readers of weights that never read", "publish p99 change < 10 %, RSS + < 50 MiB")
def test_readers_that_never_read_cost_the_learner_nothing(row: Row, tmp_path: Path) -> None:
    versions, layers = row.times(0, 300, 600), ((1000, 1000), (1000, 700))  # 6.8 MB
    module, copied = (nn.Sequential(*(nn.Linear(*sizes) for sizes in layers)) for _ in range(2))
    publisher = WeightPublisher(f"ipc://{tmp_path}/a", f"ipc://{tmp_path}/p", 1)
    process, version = psutil.Process(), -1
    follower = WeightFollower(*publisher.addresses, Module(copied))

    def publish() -> float:
        """p99 of the processor's time that a publication takes the training loop."""
        nonlocal version
        taken = []
        for _ in range(versions):
            version += 1
            began = time.thread_time()
            publisher.publish(module, version)
            taken.append(time.thread_time() - began)
            time.sleep(0.02)
        return percentile(taken, 0.99)

    def follows() -> bool:
        follower.poll()
        return follower.version == version

    publish()
    wait_until(follows, what="the honest follower")
    quiet, before = min(publish() for _ in range(3)), process.memory_info().rss
    readers: list[Raw] = []
    for _ in range(100):
        listener = Raw(publisher.addresses[0], b"SUB")
        listener.send(b"\x01")
        asker = Raw(publisher.addresses[1])
        for _ in range(20):
            asker.send(pack(FetchWeights()))
        readers += [listener, asker]
    under = min(publish() for _ in range(3))
    wait_until(follows, what="the honest follower, beside the others")
    growth = process.memory_info().rss - before
    for raw in readers:
        raw.close()
    follower.close()
    publisher.close()
    row.measured(
        "p99 of the training loop's processor time", quiet_ms=quiet * 1000, under_ms=under * 1000, growth_mib=growth / MIB
    )
    assert growth < 50 * MIB and under < 1.1 * quiet
