"""A run that grows and shrinks under load loses nothing and doubles nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.config import ActorsConfig, EnvConfig
from deploy import runs
from replay.config import ReplayConfig
from tests.harness.checker import Checker
from tests.harness.fleet import Fleet
from tests.harness.waiting import wait_until
from transport.messages.control import Scale, Scaling
from transport.sockets.client import Client

ENVS = 2


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    env = EnvConfig(id="tests.flow.counting_env:vector", stack=2, chunk_length=16)
    replay = ReplayConfig()
    made = Fleet(tmp_path / "run", env, ActorsConfig(count=2, envs_per_actor=ENVS), replay, 3, "rollouts")
    yield made
    made.close()


def scale(fleet: Fleet, actors: int) -> Scaling:
    address = fleet.run_dir.endpoint("supervisor")
    assert address is not None
    client = Client(address)
    try:
        client.send(Scale(actors))
        arrived = client.receive(30)
        assert arrived is not None and isinstance(arrived[0], Scaling)
        return arrived[0]
    finally:
        client.close()


def ready_actors(fleet: Fleet) -> list[str]:
    processes = (runs.read_status(fleet.run_dir) or {"processes": []})["processes"]
    actors = [process for process in processes if process["role"] == "actor"]
    return [actor["name"] for actor in actors] if all(actor["state"] == "ready" for actor in actors) else []


def last_record(fleet: Fleet, name: str) -> dict[str, Any]:
    path = fleet.run_dir.metrics(name)
    lines = path.read_bytes().splitlines() if path.exists() else []
    return dict(msgspec.json.decode(lines[-1])) if lines else {}


@pytest.mark.flow
@pytest.mark.slow  # test_faults.py scales, too
def test_scaling_under_load_loses_and_doubles_nothing(fleet: Fleet) -> None:
    fleet.start("host", "tests.harness.host", "actors", str(fleet.run_dir.path))
    wait_until(lambda: fleet.run_dir.endpoint("supervisor") is not None, 60, "supervisor bound")
    fleet.serve_weights()
    sampler, checker = fleet.sampler(batch_size=1), Checker(fleet.spec)

    def take() -> None:
        for _ in range(20):
            batch = sampler.next(0.02)
            if batch is None:
                return
            checker.check_rollouts(batch)
            sampler.release(batch)

    def load(until: Callable[[], bool], what: str) -> None:
        def taken_and_true() -> bool:
            take()
            return until()

        wait_until(taken_and_true, 60, what)

    def names(count: int) -> list[str]:
        return [f"actor-{index}" for index in range(count)]

    load(lambda: ready_actors(fleet) == names(2) and len(checker.seen) > 500, "two actors")
    assert scale(fleet, 4) == Scaling(2, 4)
    load(lambda: ready_actors(fleet) == names(4), "four actors")
    fleet.publish()
    load(lambda: last_record(fleet, "actor-0").get("environments") == 4 * ENVS, "the news with actor-0")
    load(lambda: {8, 9, 10, 11} <= {name[0] for name in checker.seen}, "items of the joiners")
    assert scale(fleet, 1) == Scaling(4, 1)
    load(lambda: ready_actors(fleet) == names(1), "one actor")
    load(lambda: last_record(fleet, "replay").get("queue_limit") == ENVS, "credit without the leavers")
    # Seeds are handed out in blocks: 0-3 to two actors, 4-11 to four, 12-13 to the one that is left.
    leavers = [2, 3, *range(6, 12)]
    load(lambda: {12, 13} <= {name[0] for name in checker.seen}, "items under the new seeds")
    taken = sum(last_record(fleet, name)["steps"] for name in names(4)[1:])
    load(lambda: sum(name[0] in leavers for name in checker.seen) >= taken, "all that the leavers did")
    load(lambda: last_record(fleet, "actor-0").get("environments") == ENVS, "the news with the one that is left")
    assert tomllib.loads(fleet.run_dir.config.read_text())["actors"]["count"] == 1
    host = fleet.ask_to_stop("host")
    load(lambda: host.poll() is not None, "the end")
    assert host.returncode == 0, fleet.log("host")
    assert sum(name[0] in leavers for name in checker.seen) == taken
    checker.check_nothing_lost_or_doubled()
    checker.check_versions_rise()
    assert "actor-3 has left" in fleet.log("host") and "actor-0 has left" not in fleet.log("host")
