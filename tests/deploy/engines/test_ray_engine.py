"""The process that asks a cluster: its orders, its events, and what happens when it ends."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from deploy.engines import ray_engine
from deploy.engines.base import EngineContext
from deploy.engines.fleet import Connected, Disconnected, Event
from deploy.engines.ray_engine import Close, ClusterProcess, ClusterSettings, EndHost, StartHost
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

pytestmark = pytest.mark.flow


class Supervisor:
    """What the process is told and says, seen from the supervisor. `orders` is where the stub writes what it reads."""

    def __init__(self, folder: Path) -> None:
        self.orders, self.now, self.said, self.lines = folder / "orders", 0.0, list[str](), list[str]()
        line = lambda name, text: self.lines.append(f"{name} | {text}")  # noqa: E731
        nothing: None = None
        hosts: object = nothing
        context = EngineContext(lambda: self.now, self.said.append, line, lambda: "tcp://here:1", lambda host: "", hosts)  # type: ignore[arg-type]
        self.cluster = ClusterProcess("ray", ClusterSettings("auto", folder=str(self.orders)), context)
        self.events: list[Event] = []

    def until_connected(self) -> None:
        def connected() -> bool:
            self.events += self.cluster.events()
            return any(isinstance(event, Connected) for event in self.events)

        wait_until(connected, what="the first event")
        self.events.clear()

    def until_it_ends(self) -> None:
        def ended() -> bool:
            self.events += self.cluster.events()
            return bool(self.said)

        wait_until(ended, what="its end")

    def read(self) -> list[ray_engine.Order]:
        lines = self.orders.read_bytes().splitlines() if self.orders.exists() else []
        return [msgspec.json.decode(line, type=ray_engine.Order) for line in lines]


@pytest.fixture
def supervisor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Supervisor:
    monkeypatch.setattr(ray_engine, "MODULE", "tests.deploy.engines.stub")
    monkeypatch.setattr(ray_engine, "SHORT_CLOSE_SECONDS", PATIENCE_SECONDS)  # a stub may be started in this time, too
    return Supervisor(tmp_path)


def test_orders_are_lines_of_its_input_and_the_last_one_ends_it(supervisor: Supervisor) -> None:
    supervisor.until_connected()
    supervisor.cluster.start("host-0.4.aa", 4, "secret")
    supervisor.cluster.end("host-0.4.aa")
    supervisor.cluster.close()
    assert supervisor.read() == [StartHost("host-0.4.aa", 4, "tcp://here:1", "secret"), EndHost("host-0.4.aa"), Close()]
    assert supervisor.lines == ["ray | something that Ray says"]


def test_one_that_has_ended_is_started_again_after_a_delay_that_grows_and_says_why(supervisor: Supervisor) -> None:
    supervisor.until_connected()
    supervisor.cluster.end("yourself")
    supervisor.until_it_ends()
    again = "asking the cluster again in 1 s, hosts that have joined go on"
    assert supervisor.said == [f"ray: the cluster is gone; {again}"] and supervisor.events == [Disconnected()]
    supervisor.now = 2.0
    supervisor.until_connected()
    supervisor.cluster.close()


def test_a_cluster_that_does_not_answer_for_days_does_not_end_the_run(supervisor: Supervisor) -> None:
    supervisor.until_connected()
    supervisor.cluster._failures = 2_000  # one each half a minute
    supervisor.cluster.end("yourself")
    supervisor.until_it_ends()
    assert "asking the cluster again in 30 s" in supervisor.said[0]
    supervisor.cluster.close()


def test_the_end_of_a_run_ends_the_hosts_also_while_no_process_runs(supervisor: Supervisor) -> None:
    supervisor.until_connected()
    supervisor.cluster.end("yourself")
    supervisor.until_it_ends()
    supervisor.cluster.close()
    assert supervisor.read()[-1] == Close()
