"""What the engine asks of Ray, against a stand-in for Ray's few calls; and what it refuses before a launch."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from deploy.children import child_environment
from deploy.config.run import RayConfig, RunConfig
from deploy.engines import ray as engine
from deploy.engines import ray_engine
from deploy.engines.fleet import Connected, HostEnded, Placed, Waiting
from deploy.engines.ray_engine import ClusterSettings, StartHost
from deploy.errors import ConfigError, RunRefused

ROOT = Path(__file__).parents[3]


@dataclass
class Actor:
    """A Ray actor. What its methods return is there once a test has put it into `done`."""

    ray: FakeRay
    name: str
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)

    def __getattr__(self, method: str) -> Any:
        def remote(*arguments: Any) -> tuple[str, str]:
            self.calls.append((method, arguments))
            return self.name, method

        return types.SimpleNamespace(remote=remote)


class Unavailable(Exception):
    """ActorUnavailableError."""


class FakeRay:
    """The module `ray`."""

    exceptions = types.SimpleNamespace(ActorUnavailableError=Unavailable)

    def __init__(self) -> None:
        self.actors: dict[str, Actor] = {}
        self.asked: list[dict[str, Any]] = []
        self.done: dict[tuple[str, str], Any] = {}
        self.killed: list[str] = []
        self.shut_down = False
        self.util = types.SimpleNamespace(
            get_node_ip_address=lambda: "10.0.0.5", list_named_actors=lambda: [n for n in self.actors if n not in self.killed]
        )

    def remote(self, **options: Any) -> Callable[[type], Any]:
        self.asked.append(options)

        def make(name: str) -> Any:
            return types.SimpleNamespace(remote=lambda: self.actors.setdefault(name, Actor(self, name)))

        return lambda kind: types.SimpleNamespace(options=make)

    def wait(self, references: list[tuple[str, str]], timeout: float) -> tuple[list[Any], list[Any]]:
        return [each for each in references if each in self.done], []

    def get(self, reference: tuple[str, str]) -> Any:
        result = self.done[reference]
        if isinstance(result, Exception):
            raise result
        return result

    def get_actor(self, name: str) -> Actor:
        return self.actors[name]

    def kill(self, actor: Actor) -> None:
        self.killed.append(actor.name)

    def nodes(self) -> list[dict[str, Any]]:
        return [{"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": False, "Resources": {"CPU": 64.0}}]

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 1.0}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def shutdown(self) -> None:
        self.shut_down = True


SETTINGS = ClusterSettings("auto", "headrace-mine", 2.0, 500_000_000, ("my_package",), "/work")
ORDER = StartHost("host-0.4.aa", 4, "tcp://10.0.0.5:7701", "secret")


@pytest.fixture
def ray(monkeypatch: pytest.MonkeyPatch) -> FakeRay:
    made = FakeRay()
    monkeypatch.setattr(engine, "connect", lambda settings: made)
    return made


def test_a_host_states_its_cpus_and_memory_and_is_never_started_again_by_ray(ray: FakeRay) -> None:
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    assert ray.asked == [
        {
            "num_cpus": 8.0,
            "memory": 2_000_000_000,
            "max_restarts": 0,
            "max_task_retries": 0,
            "lifetime": "detached",
            "scheduling_strategy": "SPREAD",
            "runtime_env": {"env_vars": engine.SPARE_REAPER},
        }
    ]
    assert "secret" not in repr(ray.asked) and "ticket" not in ClusterSettings.__struct_fields__
    calls = ray.actors[ORDER.host].calls
    assert calls == [("node", ()), ("run", (ORDER, ("my_package",), "/work")), ("result", ())]


def test_a_machine_and_the_end_of_a_host_are_events_and_a_host_that_has_ended_may_go(ray: FakeRay) -> None:
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    assert cluster.turn() == []
    ray.done[ORDER.host, "node"] = "a1"
    assert cluster.turn() == [Placed(ORDER.host)] and cluster.turn() == []
    ray.done[ORDER.host, "result"] = 3, "it does not allow my_env"
    assert cluster.turn() == [HostEnded(ORDER.host, "it does not allow my_env")] and cluster.turn() == []
    assert ray.actors[ORDER.host].calls[-1] == ("leave", ()) and not ray.killed


def test_no_room_is_said_once_with_what_is_asked_for_and_what_there_is(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE_SECONDS", -1.0)
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    room = "1 of the 4 CPUs of the cluster are free, and its largest machine has 4"
    assert cluster.turn() == [Waiting(ORDER.host, f"each asks Ray for 8 CPUs and 2.0 GB; {room}")]
    assert cluster.turn() == []
    ray.done[ORDER.host, "node"] = "a1"
    assert cluster.turn() == [Placed(ORDER.host)]


def test_a_host_is_not_started_where_one_was_not_heard(ray: FakeRay, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray takes a dead machine for alive for some 15 s."""
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    ray.done[ORDER.host, "node"] = "a1"
    cluster.turn()
    cluster.end(ORDER.host)
    cluster.start(structs.replace(ORDER, host="host-0.4.bb"))
    assert ray.asked[-1]["label_selector"] == {"ray.io/node-id": "!in(a1)"}
    assert ray.asked[-1]["fallback_strategy"] == [{"label_selector": {}}], "a cluster may have no other machine"
    assert cluster.turn() == []

    cluster = engine.RayCluster(SETTINGS)
    monkeypatch.setattr(engine, "SUSPECT_SECONDS", 0.0)
    cluster.start(structs.replace(ORDER, host="host-1.4.aa"))
    ray.done["host-1.4.aa", "node"] = "a1"
    cluster.turn()
    cluster.end("host-1.4.aa")
    cluster.start(structs.replace(ORDER, host="host-1.4.bb"))
    assert "label_selector" not in ray.asked[-1]


def test_a_host_that_waits_for_another_machine_does_not_wait_for_ever(ray: FakeRay) -> None:
    cluster = engine.RayCluster(SETTINGS)
    cluster._suspects["a1"] = time.monotonic() + 60
    cluster.start(ORDER)
    assert cluster.turn() == []
    cluster._suspects["a1"] = 0.0
    assert cluster.turn() == [HostEnded(ORDER.host, "no other machine had room")] and ray.killed == [ORDER.host]
    assert cluster.turn() == []


def test_of_a_host_that_died_the_sentence_with_the_reason_is_told(ray: FakeRay) -> None:
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    died = "The actor died unexpectedly.\n\tclass_name: HeadraceHost\nThe actor is dead because its node has died. Was there one?"
    ray.done[ORDER.host, "result"] = RuntimeError(died)
    assert cluster.turn() == [HostEnded(ORDER.host, "The actor is dead because its node has died")]


def test_hosts_from_before_are_found_and_without_a_limit_for_actors_no_memory_is_asked_for(ray: FakeRay) -> None:
    ray.actors["host-1.4.bb"] = Actor(ray, "host-1.4.bb")
    cluster = engine.RayCluster(structs.replace(SETTINGS, memory_bytes=0))
    assert cluster.found() == Connected(("host-1.4.bb",)) and cluster.turn() == []
    ray.done["host-1.4.bb", "result"] = 0, "the run has ended"
    assert cluster.turn() == [HostEnded("host-1.4.bb", "the run has ended")]
    cluster.start(ORDER)
    assert "memory" not in ray.asked[0]


def test_a_host_that_ray_cannot_reach_for_a_moment_has_not_ended(ray: FakeRay) -> None:
    cluster = engine.RayCluster(SETTINGS)
    cluster.start(ORDER)
    ray.done[ORDER.host, "result"] = Unavailable("the actor is temporarily unavailable")
    assert cluster.turn() == [] and cluster.turn() == []
    ray.done[ORDER.host, "result"] = 0, "the run has ended"
    assert cluster.turn() == [HostEnded(ORDER.host, "the run has ended")]


def test_the_end_takes_back_what_waits_lets_go_what_has_ended_and_kills_the_rest(
    ray: FakeRay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "LEAVE_SECONDS", 0.2)
    monkeypatch.setattr(engine, "KILL_SECONDS", 0.2)
    cluster = engine.RayCluster(SETTINGS)
    for name in ("host-0.4.aa", "host-1.4.bb", "host-2.4.cc"):
        cluster.start(structs.replace(ORDER, host=name))
    for name in ("host-0.4.aa", "host-1.4.bb"):
        ray.done[name, "node"] = "a1"
    ray.done["host-0.4.aa", "result"] = 0, "the run has ended"
    cluster.close()
    assert ray.killed == ["host-2.4.cc", "host-1.4.bb"] and ray.shut_down
    assert ray.actors["host-0.4.aa"].calls[-1] == ("leave", ())


# ---- before a launch


def config(**ray: Any) -> RunConfig:
    return RunConfig(ray=RayConfig(**ray))


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Says which version of Ray is installed; empty: none."""

    def install(version: str) -> None:
        def found(name: str) -> str:
            if not version:
                raise metadata.PackageNotFoundError(name)
            return version

        monkeypatch.setattr(metadata, "version", found)

    return install


@pytest.mark.parametrize(
    ("version", "address", "words"),
    [
        ("", "auto", r"--on ray needs Ray, which is not installed: .*pip install .*\[ray\]['\"]$"),
        *((old, "auto", f"needs Ray 2.60 or later, and this is {old}: pip install -U") for old in ("2.59.1", "2.9.3", "1.13.0")),
        ("2.60.0", "ray://head:10001", "a run belongs to a machine of the cluster"),
    ],
)
def test_a_launch_without_a_fit_ray_or_by_a_ray_client_is_refused(
    installed: Callable[[str], None], version: str, address: str, words: str
) -> None:
    installed(version)
    with pytest.raises(ConfigError, match=words):
        ray_engine.RayEngine.prepare(config(address=address))


def test_a_cluster_of_its_own_is_on_loopback_and_another_one_is_asked_for_the_address(
    installed: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed("2.60.0")
    assert ray_engine.RayEngine.prepare(config(address="local")) == {"deploy": {"bind": "127.0.0.1", "local_actors": 0}}
    monkeypatch.setattr(ray_engine, "ask", lambda address: ray_engine.ClusterInfo("10.0.0.5"))
    assert ray_engine.RayEngine.prepare(config()) == {"deploy": {"bind": "10.0.0.5", "local_actors": 0}}


def test_what_the_process_that_asks_the_cluster_says_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(status: int, stdout: str) -> None:
        monkeypatch.setattr(subprocess, "run", lambda *given, **more: subprocess.CompletedProcess([], status, stdout, "noise"))

    answer(0, 'a warning of Ray\n{"own_address":"10.0.0.5"}\n')
    assert ray_engine.ask("auto") == ray_engine.ClusterInfo("10.0.0.5")
    answer(1, "the cluster has another Python\n")
    with pytest.raises(RunRefused, match="^--ray.address auto: the cluster has another Python$"):
        ray_engine.ask("auto")
    answer(-6, "")
    with pytest.raises(RunRefused, match="^--ray.address auto: no Ray cluster answers there"):
        ray_engine.ask("auto")


MISMATCH = """Version mismatch: The cluster was started with:
    Ray: 2.61.0
    Python: 3.13.0
This process on node 10.0.0.5:6379 was started with:
    Ray: 2.60.0
    Python: 3.11.7
"""


@pytest.fixture
def refusing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Exception | None], list[dict[str, Any]]]]:
    """Puts a module `ray` in place, whose `init` raises an error; returns what `init` was given."""

    def refuse(error: Exception | None) -> list[dict[str, Any]]:
        def init(address: str, **options: Any) -> None:
            given.append({"address": address, **options})
            if error is not None:
                raise error

        given: list[dict[str, Any]] = []
        module: Any = types.ModuleType("ray")
        module.init = init
        monkeypatch.setitem(sys.modules, "ray", module)
        return given

    yield refuse


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError(MISMATCH), "the cluster has Ray 2.61.0 on Python 3.13.0, and this is Ray 2.60.0 on Python 3.11.7: install"),
        (
            ConnectionError("Could not find any running Ray instance. Please…"),
            "^Could not find any running Ray instance: start a cluster with `ray start --head`, or",
        ),
        (ValueError("no such\naddress"), "^address$"),
    ],
)
def test_why_ray_does_not_connect_is_one_line(refusing: Any, error: Exception, words: str) -> None:
    refusing(error)
    with pytest.raises(engine.ClusterError, match=words) as raised:
        engine.connect(SETTINGS)
    assert "\n" not in str(raised.value)


def test_a_cluster_is_started_only_for_the_address_local(refusing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "local")
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    given = refusing(None)
    engine.connect(SETTINGS)
    assert given[0]["address"] == "auto" and "object_store_memory" not in given[0]
    assert "RAY_ADDRESS" not in os.environ, "else Ray would start one"
    engine.connect(structs.replace(SETTINGS, address="local"))
    assert given[1]["address"] == "local" and given[1]["object_store_memory"] == engine.STORE_BYTES
    assert len(os.environ["RAY_AUTH_TOKEN"]) == 64, "else Ray leaves one in the user's home"


def test_without_the_engine_nothing_of_it_is_imported() -> None:
    code = "import sys, deploy.cli.main, deploy.supervision.service; print([n for n in sys.modules if 'ray' in n.split('.')])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=child_environment(), capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr
