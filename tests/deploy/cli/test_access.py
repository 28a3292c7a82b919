"""`headrace keys`, and what `headrace up` refuses."""

from __future__ import annotations

import json
import os
import socket
import stat
from contextlib import ExitStack
from pathlib import Path
from typing import Literal

import pytest

from actors.config import ActorsConfig, EnvConfig
from deploy import runs, settings
from deploy.cli import main as cli
from deploy.config.checks import validate
from deploy.config.files import write_config
from deploy.config.run import DeployConfig, RunConfig
from deploy.launch import access
from transport.run_dir import RunDir
from transport.sockets import keys
from transport.sockets.keys import Keys, KeysError
from transport.system import is_free


@pytest.fixture(autouse=True)
def ordinary_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    status = cli.main(arguments)
    output = capsys.readouterr()
    text = output.err if status else output.out
    assert text.count("\n") == 1 if status else text, output
    return status, text


def make_run(bind: str = "127.0.0.1", wrappers: tuple[str, ...] = (), inference: Literal["local", "batched"] = "local") -> RunDir:
    run = RunDir(Path("runs/night"))
    run.create()
    config = RunConfig(deploy=DeployConfig(bind=bind), env=EnvConfig(wrappers=wrappers), actors=ActorsConfig(inference=inference))
    run.config.write_bytes(write_config(config))
    settings.write_acting(run, config, "actor-0")
    run.spec.write_text("{}")
    return run


def test_keys_are_made_for_a_run_that_does_not_exist_yet_and_then_kept(capsys: pytest.CaptureFixture[str]) -> None:
    status, text = said(capsys, "keys", "night", "--actors", "3")
    assert status == 0 and "operator, actor-0, actor-1, actor-2" in text
    before = Keys(Path("runs/night/keys"), "actor-1").pair
    assert "has keys for all" in said(capsys, "keys", "night")[1]
    assert Keys(Path("runs/night/keys"), "actor-1").pair == before


def test_renewing_leaves_no_peer_that_is_not_named(capsys: pytest.CaptureFixture[str]) -> None:
    said(capsys, "keys", "night", "--actors", "3")
    before = Keys(Path("runs/night/keys"), "actor-0").pair
    said(capsys, "keys", "night", "--renew", "actor-1")
    assert Keys(Path("runs/night/keys"), "actor-0").pair == before
    said(capsys, "keys", "night", "--renew", "--actors", "1")
    assert Keys(Path("runs/night/keys"), "actor-0").pair != before
    with pytest.raises(KeysError):
        Keys(Path("runs/night/keys"), "actor-1")


def test_a_run_that_is_up_keeps_its_servers_keys(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    with runs.locked(run):
        assert said(capsys, "keys", "night")[0] == 3
    assert said(capsys, "keys", "night")[0] == 0
    with runs.locked(run):
        assert said(capsys, "keys", "night", "--renew")[0] == 3
        assert said(capsys, "keys", "night", "--renew", "replay")[0] == 3
        assert said(capsys, "keys", "night", "--renew", "actor-0")[0] == 0
        assert said(capsys, "keys", "night", "--actors", "9")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("--renew", "actr-1"), 2, "no process"),
        (("--renew", "../actor"), 2, "no process"),
        (("--renew", "actor-../x"), 2, "no process"),
        (("--actors", "0"), 2, "1 to 1024"),
        (("--export", "learner", "x"), 2, "actor-7"),
        (("--export", "actor-x", "x"), 2, "actor-7"),
        (("--export", "actor-1", "x"), 3, "headrace keys night"),
    ],
)
def test_a_mistake_costs_a_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], status: int, words: str) -> None:
    make_run()
    found, text = said(capsys, "keys", "night", *arguments)
    assert found == status and words in text


def test_what_is_exported_is_all_that_an_actor_needs_and_no_more(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(inference="batched")
    said(capsys, "keys", "night")
    run.write_endpoint("replay", "tcp://127.0.0.1:4567")
    said(capsys, "keys", "night", "--export", "actor-7", "worker")
    files = {file.relative_to("worker").as_posix() for file in Path("worker").rglob("*") if file.is_file()}
    given = {"settings/actor-7.json", "settings/transport.json"}
    assert files == {"spec.json", "endpoints/replay.json", "keys/actor-7.secret", "keys/public"} | given
    assert RunDir(Path("worker")).keys("actor-7") is not None and run.keys("actor-7") is not None
    acting = json.loads(Path("worker/settings/actor-7.json").read_bytes())["actors"]
    assert acting["inference"] == "local", "there is no inference process beside it"


@pytest.mark.parametrize("wrappers", [(), ("mine:Wrap",)], ids=["built in", "of one's own"])
def test_the_command_that_is_told_starts_an_actor_whose_settings_name_code(
    wrappers: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(wrappers=wrappers)
    said(capsys, "keys", "night")
    _, text = said(capsys, "keys", "night", "--export", "actor-7", "worker", "--trust-config")
    assert ("`python -m actors FOLDER --actor 7 --trust-config`" in text) == bool(wrappers)
    assert ("env.wrappers" in text) == bool(wrappers) and "python -m actors FOLDER --actor 7" in text


def test_a_fixed_port_that_is_in_use_is_refused_before_anything_is_launched() -> None:
    run = make_run()
    with ExitStack() as sockets:
        port = 0
        while not port or not is_free("127.0.0.1", port):  # somebody else may have it
            taken = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
            port = taken.getsockname()[1] - 1  # that of weights
        config = RunConfig(actors=ActorsConfig(count=1), deploy=DeployConfig(bind="127.0.0.1", port=port))
        with pytest.raises(access.RunRefused, match=f"port {port + 1} of 127.0.0.1 is in use"):
            access.check(run, config)


def test_a_fixed_port_needs_an_address() -> None:
    assert validate(RunConfig(deploy=DeployConfig(port=7701))) == ["deploy.port: expected 0 without deploy.bind, got 7701"]
    assert validate(RunConfig(deploy=DeployConfig(port=7701, on="ray"))) == [], "the engine brings it"


def test_tickets_are_made_once_and_only_for_this_user(capsys: pytest.CaptureFixture[str]) -> None:
    tickets = Path("runs/night/keys/tickets")
    assert "made host-0.ticket, host-1.ticket in" in said(capsys, "invite", "night", "--hosts", "2")[1]
    first = keys.read_ticket(tickets / "host-0.ticket")
    assert first.name == "ticket-0" and Keys(Path("runs/night/keys"), "operator").listed()["ticket-0"] == first.pair.public
    assert "made host-2.ticket in" in said(capsys, "invite", "night", "--hosts", "3")[1]
    assert "has tickets for all" in said(capsys, "invite", "night", "--hosts", "3")[1]
    assert keys.read_ticket(tickets / "host-0.ticket").pair == first.pair
    if os.name == "posix":
        assert {stat.S_IMODE(path.stat().st_mode) for path in tickets.iterdir()} == {0o600}
        assert stat.S_IMODE(tickets.stat().st_mode) == 0o700


def test_a_host_is_revoked_with_its_ticket(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("runs/night/keys")
    said(capsys, "invite", "night", "--hosts", "2")
    keys.admit(folder, "host-1", "k" * 40)
    assert "host-1 and its ticket are refused" in said(capsys, "invite", "night", "--revoke", "host-1")[1]
    listed = Keys(folder, "operator").listed()
    assert "ticket-0" in listed and not {"ticket-1", "host-1"} & set(listed)
    assert not (folder / "tickets" / "host-1.ticket").exists()
    for wrong in ("host-1", "operator", "ticket-0"):
        assert said(capsys, "invite", "night", "--revoke", wrong)[0] == 2
    assert said(capsys, "invite", "night", "--hosts", "0")[0] == 2


def test_one_ticket_for_several_hosts_is_replaced_by_one_for_another_number_and_revoked_with_its_hosts(
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = Path("runs/night/keys")
    path = folder / "tickets" / "shared.ticket"
    assert said(capsys, "invite", "night", "--revoke", "shared")[0] == 2
    assert "made shared.ticket in" in said(capsys, "invite", "night", "--hosts", "8", "--shared")[1]
    first = keys.read_ticket(path)
    assert first.name == "ticket-shared-8" and "one of 8 hosts" in path.read_text()
    assert "has tickets for all" in said(capsys, "invite", "night", "--hosts", "8", "--shared")[1]
    said(capsys, "invite", "night", "--hosts", "9", "--shared")
    said(capsys, "invite", "night", "--hosts", "1")
    assert first.pair.public not in Keys(folder, "operator").listed().values()
    for name in ("host-0", "host-4"):
        keys.admit(folder, name, name[-1] * 40)
    assert "the shared ticket and 1 hosts" in said(capsys, "invite", "night", "--revoke", "shared")[1]
    assert {"host-0", "ticket-0"} <= set(listed := Keys(folder, "operator").listed()) and not path.exists()
    assert not {"host-4", "ticket-shared-9"} & set(listed)


def test_a_run_that_is_up_without_keys_invites_nobody(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    with runs.locked(run):
        assert said(capsys, "invite", "night", "--hosts", "1")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("tcp://10.0.0.5", "--ticket", "x"), 2, "tcp://HOST:PORT"),
        (("ipc:///tmp/x", "--ticket", "x"), 2, "tcp://HOST:PORT"),
        (("tcp://a:77011", "--ticket", "x"), 2, "'tcp://a:77011' is not an address of a run"),
        (("tcp://_:1", "--ticket", "x"), 2, "'tcp://_:1' is not an address of a run"),
        (("tcp://a:1", "--ticket", "x", "--places", "0"), 2, "1 to 128 places"),
        (("tcp://a:1", "--ticket", "x", "--allow", "my-package"), 2, "is not a package's name"),
        (("tcp://a:1", "--ticket", "x"), 2, "headrace invite"),
        (("tcp://a:1",), 2, "--ticket"),
    ],
)
def test_a_mistake_of_who_joins_is_one_line(
    arguments: tuple[str, ...], status: int, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, text = said(capsys, "join", *arguments)
    assert found == status and words in text


def test_fresh_keeps_the_keys(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    said(capsys, "keys", "night")
    aside = runs.set_aside(run)
    assert aside is not None and not (aside / "keys").exists() and run.key_folder.is_dir()


@pytest.mark.skipif(os.name != "posix", reason="modes are POSIX's")
def test_up_makes_keys_for_actors_that_have_none_and_checks_all(capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run()
    said(capsys, "keys", "night", "--actors", "1")
    access.check(run, RunConfig(actors=ActorsConfig(count=2), deploy=DeployConfig(bind="127.0.0.1")))
    assert "made keys for actor-1" in capsys.readouterr().out
    (run.key_folder / "learner.secret").chmod(0o644)
    with pytest.raises(KeysError, match="learner.secret"):
        access.check(run, RunConfig(actors=ActorsConfig(count=2), deploy=DeployConfig(bind="127.0.0.1")))


@pytest.mark.parametrize("value", ["hallo", "127.0.0.1:80", "[::1]", "tcp://127.0.0.1", "0.0.0.0/0"])
def test_a_bind_that_is_no_address_is_refused(capsys: pytest.CaptureFixture[str], value: str) -> None:
    status, text = said(capsys, "up", "--env", "CartPole-v1", "--deploy.bind", value)
    assert status == 2 and "deploy.bind must be an IP address" in text


@pytest.mark.skipif(os.name != "posix", reason="Windows has no root")
def test_root_is_warned_once_on_a_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(access.os, "getuid", lambda: 0, raising=False)
    for warnings in (1, 0, 0):
        access.check(make_run(bind=""), RunConfig())
        assert capsys.readouterr().out.count(access.ROOT_WARNING) == warnings
    told = next((tmp_path / "state").rglob("root-warning"))
    os.utime(told, (0, 0))  # long ago
    access.check(make_run(bind=""), RunConfig())
    assert access.ROOT_WARNING in capsys.readouterr().out
