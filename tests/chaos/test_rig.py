"""The tools of the rehearsals do to others what they say: the simulator fails on command, the proxies spoil what passes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import simulator
from tests.chaos.simulator import FAULTS_VARIABLE, ChaosEnv, command
from tests.harness.message_proxy import Chances, MessageProxy
from tests.harness.proxy import TcpProxy
from tests.harness.waiting import wait_until
from transport.messages.replay import Ack, Credit
from transport.sockets.client import Client
from transport.sockets.server import Server

BLOB = bytes(range(256)) * 400  # 102,400 bytes


@pytest.fixture
def faulty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where actor-1, which this process pretends to be, is told what to do."""
    path = tmp_path / "faults"
    monkeypatch.setenv(FAULTS_VARIABLE, str(path))
    monkeypatch.setattr(sys, "argv", ["actors", "run", "--actor", "1"])
    return path


def test_the_simulator_counts_until_it_is_told_to_fail(faulty: Path) -> None:
    env = ChaosEnv(image=False)
    env.reset(seed=5)
    env.step(0)
    command(faulty, actor_1={"raise_at_reset": True})
    with pytest.raises(RuntimeError, match="told to fail"):
        env.reset()
    command(faulty, actor_0={"raise_at_reset": True})
    env.reset()
    command(faulty, actor_1={"raise_at_reset": True, "pid": os.getpid() + 1})
    env.reset()
    command(faulty, everyone={"step_seconds": 0.05})
    begun = time.monotonic()
    env.step(0)
    assert time.monotonic() - begun >= 0.05


def test_the_simulator_hangs_at_the_step_it_is_told_and_leaks(faulty: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hung: list[str] = []
    monkeypatch.setattr(simulator, "hang", hung.append)
    env = ChaosEnv(image=True)
    env.reset(seed=5)
    command(faulty, actor_1={"hang": "busy", "at_step": 2, "leak_bytes": 1000})
    for _ in range(3):
        env.reset()
        env.step(0)
    assert hung == ["busy"]
    assert sum(block.nbytes for block in ChaosEnv._leaked) == 3000
    ChaosEnv._leaked.clear()


@pytest.mark.parametrize("how", ["busy", "deadlock"])
def test_a_hang_does_not_end(how: str) -> None:
    hanging = subprocess.Popen(
        [sys.executable, "-c", f"from tests.chaos.simulator import hang; print(flush=True); hang({how!r})"], stdout=-1
    )
    assert hanging.stdout is not None
    with hanging.stdout:
        hanging.stdout.readline()
    with pytest.raises(subprocess.TimeoutExpired):
        hanging.wait(0.3)
    hanging.kill()
    hanging.wait()


def test_the_simulator_starts_a_server_of_its_own(faulty: Path) -> None:
    env = ChaosEnv(image=False)
    env.reset(seed=5)
    command(faulty, actor_1={"child": True})
    for _ in range(2):
        env.reset()
        env.step(0)
    child = ChaosEnv._child
    assert child is not None and child.poll() is None
    child.kill()
    child.wait()
    ChaosEnv._child = None


class Ends:
    """A server and a client with a proxy between."""

    def __init__(self) -> None:
        self.server = Server("tcp://127.0.0.1:*")
        self.proxy = TcpProxy(self.server.address, seed=1, record=True)
        self.client = Client(self.proxy.address)
        self.got: list[tuple[int, list[bytes]]] = []
        self.sent = 0

    def send(self, *parts: bytes) -> None:
        self.client.send(Credit(self.sent), parts)
        self.sent += 1

    def heard(self) -> int:
        """Messages that have arrived."""
        while (arrival := self.server.receive()) is not None:
            assert isinstance(arrival[1], Credit)
            self.got.append((arrival[1].credit_bytes, arrival[2]))
        return len(self.got)


@pytest.fixture
def ends() -> Iterator[Ends]:
    made = Ends()
    yield made
    made.client.close()
    made.server.close()
    made.proxy.close()


def test_the_proxy_passes_everything_on_and_keeps_it(ends: Ends) -> None:
    for _ in range(5):
        ends.send(BLOB)
    wait_until(lambda: ends.heard() == 5, what="five messages")
    assert ends.got == [(number, [BLOB]) for number in range(5)]
    assert bytes(ends.proxy.recorded[1, "up"]).count(BLOB) == 5 and ends.proxy.connections == 1


def test_a_reset_ends_connections_and_the_next_one_works(ends: Ends) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    assert ends.proxy.reset() == 1
    wait_until(lambda: ends.proxy.connections == 2, what="another connection")
    ends.send()
    wait_until(lambda: ends.heard() == 2, what="a message over it")


def test_a_connection_is_cut_in_the_middle_of_a_message(ends: Ends) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    ends.proxy.cut(50_000)
    ends.send(BLOB)
    wait_until(lambda: ends.proxy.resets == 1, what="the cut")
    wait_until(lambda: ends.proxy.connections == 2, what="another connection")
    ends.send()
    wait_until(lambda: ends.heard() >= 2 and ends.got[-1][0] == 2, what="what came after")
    assert (1, [BLOB]) not in ends.got, "half of it was lost"


def test_in_a_blackhole_nothing_passes_and_afterwards_all_of_it(ends: Ends) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    ends.proxy.set(blackhole=True)
    ends.send(BLOB)
    time.sleep(0.2)
    assert ends.heard() == 1
    ends.proxy.set()
    wait_until(lambda: ends.heard() == 2, what="what waited")


def test_the_proxy_breaks_connections_while_something_is_sent(ends: Ends) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    ends.proxy.set(break_probability=1.0)
    ends.send(BLOB)
    wait_until(lambda: ends.proxy.resets >= 1, what="a broken connection")
    ends.proxy.set()

    def another_comes() -> bool:
        ends.send()
        return ends.heard() >= 2 and ends.got[-1][1] == []

    wait_until(another_comes, what="what comes over the next connection")
    assert (1, [BLOB]) not in ends.got, "half of it was lost"


@pytest.mark.parametrize(
    ("faults", "least_seconds"),
    [
        ({"delay_seconds": 0.2, "jitter_seconds": 0.05}, 0.15),
        ({"bytes_per_second": 200_000}, 0.5),
        ({"stall_probability": 0.2, "stall_seconds": 0.05}, 0.3),
    ],
    ids=["delay", "bandwidth", "loss"],
)
def test_the_proxy_slows(ends: Ends, faults: dict[str, float], least_seconds: float) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    ends.proxy.set(**faults)
    begun = time.monotonic()
    ends.send(BLOB)
    wait_until(lambda: ends.heard() == 2, what="the message")
    assert time.monotonic() - begun >= least_seconds
    assert ends.got[-1] == (1, [BLOB])


def test_the_proxy_flips_bits(ends: Ends) -> None:
    ends.send()
    wait_until(lambda: ends.heard() == 1, what="a message")
    ends.proxy.set(flip_probability=0.5)
    wrong = 0

    def found() -> bool:
        nonlocal wrong
        ends.send(BLOB)
        ends.heard()
        wrong = sum(parts != [BLOB] for _, parts in ends.got[1:])
        return wrong > 0

    wait_until(found, what="a wrong bit")


def test_the_message_proxy_drops_doubles_and_delays_by_its_seed(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/server"
    server = Server(address)
    up, down = Chances(drop=0.25, double=0.25, delay=0.25, delay_seconds=0.02), Chances(drop=0.5)
    with MessageProxy(f"ipc://{tmp_path}/front", address, up, down, seed=3) as proxy:
        clients = [Client(proxy.address) for _ in range(2)]
        for number in range(400):
            clients[number % 2].send(Credit(number))
        got: list[int] = []

        def heard() -> bool:
            while (arrival := server.receive()) is not None:
                got.append(arrival[1].credit_bytes)
                server.send(arrival[0], Ack(arrival[1].credit_bytes))
            return proxy.seen["up"] == 400 and len(got) == 400 - proxy.dropped["up"] + proxy.doubled["up"]

        wait_until(heard, what="what was not dropped")
        answered: list[int] = []

        def answers() -> bool:
            for place, client in enumerate(clients):
                while (arrival := client.receive()) is not None:
                    assert arrival[0].next_sequence % 2 == place, "each has its own answers"
                    answered.append(arrival[0].next_sequence)
            return proxy.seen["down"] == len(got) and len(answered) == len(got) - proxy.dropped["down"]

        wait_until(answers, what="answers")
        assert 50 < proxy.dropped["up"] < 150 and 30 < proxy.doubled["up"] < 130 and got != sorted(got)
        assert 0.35 * len(got) < proxy.dropped["down"] < 0.65 * len(got)
        for client in clients:
            client.close()
    server.close()


def test_commands_are_read_as_they_are_written(tmp_path: Path) -> None:
    command(tmp_path / "faults", actor_12={"hang": "busy"}, everyone={"step_seconds": 1})
    assert json.loads((tmp_path / "faults").read_text()) == {"actor-12": {"hang": "busy"}, "*": {"step_seconds": 1}}
