"""What of a run can be reached, by whom, and what its processes tell about its keys."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from actors.config import ActorsConfig
from deploy import runs
from deploy.children import child_environment, python_command
from deploy.cli import main as cli
from deploy.config.run import DeployConfig, RunConfig
from deploy.launch import access, minimum_versions
from tests.chaos.rows import Row
from tests.harness.run import Stubs, World
from tests.harness.waiting import ROOT, wait_until
from tests.transport.keys import Ring
from transport.messages.codec import TYPES
from transport.messages.control import Order, Progress, Scale, Scaling, Stop, Stopping
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.authenticator import library
from transport.sockets.client import Client
from transport.sockets.keys import KeysError

pytestmark = pytest.mark.chaos


class Host(Stubs):
    """A run of processes that stand in for the roles, with keys where it listens over TCP."""

    def __init__(self, folder: Path, bind: str) -> None:
        super().__init__(folder, *(["--bind", bind] if bind else []))
        if bind:
            self.ring = Ring(self.run_dir.key_folder)
        self.start()

    @property
    def processes(self) -> list[psutil.Process]:
        """The supervisor and all below it."""
        assert self.supervisor is not None
        supervisor = psutil.Process(self.supervisor.pid)
        return [supervisor, *supervisor.children(recursive=True)]

    def client(self, name: str) -> Client:
        address = self.run_dir.endpoint("supervisor")
        assert address is not None
        return Client(address, keys=self.ring.of(name), endpoint="supervisor")


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Any]:
    made: list[Host] = []

    def start(bind: str) -> Host:
        (tmp_path / str(len(made))).mkdir()
        made.append(Host(tmp_path / str(len(made)), bind))
        return made[-1]

    yield start
    for host in made:
        host.close()


def listening(pids: set[int]) -> list[str]:
    """Addresses that these processes listen on over TCP, as `ss -ltnp` has it."""
    if shutil.which("ss"):
        lines = subprocess.run(["ss", "-Hltnp"], capture_output=True, text=True, check=True).stdout.splitlines()
        return [line.split()[3].rpartition(":")[0] for line in lines if any(f"pid={pid}," in line for pid in pids)]
    found = (connection for pid in pids for connection in psutil.Process(pid).net_connections("tcp"))
    return [connection.laddr.ip for connection in found if connection.status == psutil.CONN_LISTEN]


@pytest.mark.row("S2", "what of a run can be reached", "`ss -ltnp` shows only loopback; BIND=0.0.0.0 without keys: exit is not 0")
def test_nothing_but_loopback_listens_and_a_wider_address_is_refused_without_keys(
    row: Row, hosts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    silent, bound = hosts(""), hosts("127.0.0.1")
    silent.up()
    bound.up()
    over_ipc = listening({process.pid for process in silent.processes})
    over_tcp = listening({process.pid for process in bound.processes})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 1000, raising=False)
    refused = cli.main(["up", "--env", "CartPole-v1", "--run", "mine", "--deploy.bind", "0.0.0.0"])
    said = capsys.readouterr().err
    make = subprocess.run(["make", "-n", "up", "BIND=0.0.0.0"], cwd=ROOT, capture_output=True, text=True)
    row.measured(default=f"{len(over_ipc)} ports", loopback=f"{len(over_tcp)} ports", status_without_keys=refused)
    assert over_ipc == [] and set(over_tcp) == {"127.0.0.1"}
    assert refused == 3 and said.count("\n") == 1 and "headrace keys mine" in said
    assert not (tmp_path / "runs").exists() and '--deploy.bind "0.0.0.0"' in make.stdout


@pytest.mark.row("S16", "an actor's key on the control port", "refused; fuzzed verbs: no process started")
def test_an_actor_cannot_steer_the_run(row: Row, hosts: Any) -> None:
    host = hosts("127.0.0.1")
    host.up()
    before = {process.pid for process in host.processes}
    actor = host.client("actor-1")
    answers = []
    for message in (Stop("fire"), Scale(50), Order("pause", 7)):
        actor.send(message)
        arrived = actor.receive(30)
        answers.append(type(arrived[0]).__name__ if arrived else "nothing")
    actor.send(Progress("learner", 1, "stopping", 1, {"updates": 1e9}))
    chance, verbs = random.Random(0), row.times(2000, 200_000)
    for number in range(verbs):
        kind = chance.choice(list(TYPES))
        named = {"reason": "x", "actors": 9, "name": "actor-0", "command": "sh", "number": 1}
        fields = {"type": kind} | (named if number % 2 else {})
        header = msgspec.msgpack.encode(fields) if number % 3 else chance.randbytes(40)
        wait_until(lambda header=header: actor._send_parts([header]), what="sent")  # type: ignore[misc]
    while actor.receive(1.0) is not None:  # the answers to those that were well formed: all has been read
        pass
    operator = host.client("operator")
    operator.send(Scale(2))  # as many as there are
    arrived = operator.receive(60)
    after = {process.pid for process in host.processes}
    row.measured(
        f"{verbs} fuzzed verbs", stop=answers[0], scale=answers[1], started=len(after - before), ended=len(before - after)
    )
    operator.send(Stop("enough"))
    stopping = operator.receive(30)
    status = host.ended()
    for client in (actor, operator):
        client.close()
    assert answers == ["Refused"] * 3 and before == after
    assert arrived is not None and isinstance(arrived[0], Scaling)
    assert stopping is not None and isinstance(stopping[0], Stopping) and status == 0
    assert "does not authorise" in host.text


@pytest.mark.row("S17", "where secrets can be seen", "ps, environment and logs hold no key; wrong mode: refuses to start")
def test_no_secret_is_told_and_an_open_file_is_refused(row: Row, hosts: Any, tmp_path: Path) -> None:
    host = hosts("127.0.0.1")
    host.up()
    secrets = [host.ring.of(name).pair.secret for name in (*keys.ALWAYS, "actor-0", "actor-1")]
    told = [" ".join([*process.cmdline(), *map(str, process.environ().items())]) for process in host.processes]
    host.interrupt()
    files = [file for file in host.folder.rglob("*") if file.is_file() and file.parent != host.run_dir.key_folder]
    told += [file.read_bytes().decode(errors="replace") for file in files]
    leaks = sum(secret in text for secret in secrets for text in told)
    (host.run_dir.key_folder / "actor-0.secret").chmod(0o644)
    command = [sys.executable, "-m", "tests.harness.stub", str(host.run_dir.path), "actor-0", "well"]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    config = RunConfig(actors=ActorsConfig(count=1), deploy=DeployConfig(bind="127.0.0.1"))
    with pytest.raises(KeysError, match="actor-0.secret") as caught:
        access.check(host.run_dir, config)
    row.measured(places=len(told), secrets=len(secrets), leaks=leaks, status_of_a_process=process.returncode)
    assert leaks == 0 and len(files) > 5
    assert process.returncode == 3 and process.stdout.count("\n") == 1 and not process.stderr
    assert not any(secret in process.stdout + str(caught.value) for secret in secrets)


@pytest.mark.row(
    "S19", "old libraries with known holes", "minimum versions of msgpack, torch and libzmq (with CURVE) are checked and enforced"
)
def test_old_libraries_are_refused(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert minimum_versions.too_old() == []
    monkeypatch.chdir(tmp_path)
    real, refused = minimum_versions.installed, []
    old = {"msgpack": "1.2.0", "torch": "2.3.1+cpu"}
    for package, version in old.items():
        monkeypatch.setattr(minimum_versions, "installed", lambda name, p=package, v=version: v if name == p else real(name))
        refused.append(cli.main(["up", "--env", "CartPole-v1"]))
        assert f"{package} {version} is too old" in capsys.readouterr().err
    monkeypatch.setattr(minimum_versions, "installed", real)
    for found in (((4, 3, 4), True), ((4, 3, 5), False)):
        monkeypatch.setattr(minimum_versions, "library", lambda found=found: found)
        refused.append(cli.main(["up", "--env", "CartPole-v1"]))
        assert "pyzmq" in capsys.readouterr().err
    row.measured(msgpack=real("msgpack"), torch=real("torch"), libzmq=".".join(map(str, library()[0])), statuses=refused)
    assert refused == [3, 3, 3, 3]


@pytest.mark.row("S19", "packages with known advisories", "pip-audit clean")
def test_no_installed_package_has_a_known_advisory(row: Row) -> None:
    row.times(0, 1)
    if importlib.util.find_spec("pip_audit") is None:
        pytest.skip("pip-audit is not installed")
    done = subprocess.run([sys.executable, "-m", "pip_audit", "--skip-editable"], capture_output=True, text=True, timeout=600)
    if "ConnectionError" in done.stderr or "Max retries" in done.stderr:
        pytest.skip("the advisory database cannot be reached")
    row.measured(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "clean", status=done.returncode)
    assert done.returncode == 0, done.stdout


@pytest.mark.row("S20", "a run by root", "refused (3) with an address that others reach")
def test_root_is_refused_a_wide_address(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """tests/deploy/cli/test_access.py shows the warning."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: 0, raising=False)
    status = cli.main(["up", "--env", "CartPole-v1", "--run", "mine", "--deploy.bind", "10.0.0.5"])
    row.measured(status=status)
    assert status == 3 and "ordinary user" in capsys.readouterr().err


def states(world: World) -> dict[str, str]:
    """The states of processes in status.json, by name."""
    return {process["name"]: process["state"] for process in (runs.read_status(world.run_dir) or {}).get("processes", [])}


def acknowledged(metrics: Path) -> int:
    """Steps that replay has taken from an actor, by its own account."""
    records = map(msgspec.json.decode, metrics.read_bytes().splitlines())
    return max((int(record.get("acknowledged_steps", 0)) for record in records), default=0)


@pytest.mark.row(
    "S3", "an actor on another machine, in a real run", "its copied folder is all that it needs; a stranger's is no use"
)
def test_an_actor_works_from_a_copied_folder(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row.times(0, 1)
    settings = ("--deploy.bind", "127.0.0.1", "--replay.samples-per-insert-high", "1000", "--evaluator.enabled", "false")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))  # where no run has warned root yet
    world = World(tmp_path, "CartPole-v1", settings)
    worker, stranger = tmp_path / "worker", tmp_path / "stranger"
    started: list[subprocess.Popen[bytes]] = []
    try:
        assert world.command("keys", "mine", "--actors", "2").returncode == 0
        world.up()
        assert world.supervisor is not None
        only_loopback = set(listening({world.supervisor.pid, *world.pids().values()}))
        assert world.command("keys", "mine", "--export", "actor-100", str(worker)).returncode == 0
        shutil.copytree(worker, stranger)
        Ring(tmp_path / "other", actors=101)
        shutil.copyfile(tmp_path / "other" / "actor-100.secret", stranger / "keys" / "actor-100.secret")
        for folder in (worker, stranger):
            command = python_command("actors", str(folder), "--actor", "100")
            with (folder / "out").open("wb") as output:
                started.append(subprocess.Popen(command, cwd=tmp_path, env=child_environment(), stdout=output, stderr=output))
        wait_until(lambda: b"steps/s" in (worker / "out").read_bytes(), 60, "the actor at work")
        wait_until(lambda: b"no connection to" in (stranger / "out").read_bytes(), 60, "the stranger refused")
        wait_until(lambda: "remote" in states(world).get("actor-100", ""), 60, "the actor in status.json")
        metrics = RunDir(worker).metrics("actor-100")
        wait_until(lambda: metrics.exists() and acknowledged(metrics) > 0, 60, "acknowledged")
        wait_until(lambda: max(record.get("handshakes_failed", 0) for record in world.records("replay")) > 0, what="counted")
        warnings = (tmp_path / "terminal").read_text().count("warning: this run belongs to root")
        row.measured(listening=sorted(only_loopback), warnings_to_root=warnings, acknowledged_steps=acknowledged(metrics))
        row.measured(strangers_steps=int(b"steps/s" in (stranger / "out").read_bytes()))
        assert only_loopback == {"127.0.0.1"} and warnings == int(os.getuid() == 0)
        assert b"steps/s" not in (stranger / "out").read_bytes()
        assert world.stop() == 0
    finally:
        for process in started:
            process.kill()
            process.wait()
        world.close()
