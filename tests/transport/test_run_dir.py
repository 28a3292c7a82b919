"""A run's folder."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import wait_until
from tests.transport.keys import Ring
from transport.run_dir import RunDir
from transport.sockets.keys import KeysError
from transport.sockets.server import Server

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="no ipc sockets there")


@pytest.fixture
def short() -> Iterator[Path]:
    """pytest's own folders are too deep for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def make_run(tmp_path: Path, **transport: Any) -> RunDir:
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.settings("transport").write_text(json.dumps(transport))
    return run_dir


def test_a_server_has_its_fixed_port_and_another_keeps_any_across_restart_and_resume(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, bind="127.0.0.1", ports={"replay-1": 7705})
    assert [run_dir.bind_address(role) for role in ("replay-1", "replay")] == ["tcp://127.0.0.1:7705", "tcp://127.0.0.1:*"]
    server = Server(run_dir.bind_address("replay"))
    run_dir.write_endpoint("replay", server.address)
    assert run_dir.bind_address("replay") == server.address == run_dir.endpoint("replay")
    run_dir.remove_sockets()
    assert run_dir.endpoint("replay") is None
    assert run_dir.bind_address("replay") == "tcp://127.0.0.1:*"  # the port is in use now
    server.close()
    wait_until(lambda: run_dir.bind_address("replay") == server.address, what="the port free again")


@pytest.mark.parametrize(
    ("bind", "advertise", "bound", "published"),
    [
        ("0.0.0.0", "trainer", "tcp://0.0.0.0:4567", "tcp://trainer:4567"),
        ("0.0.0.0", "", "tcp://0.0.0.0:4567", "tcp://this-host:4567"),
        ("::", "fd00::5", "tcp://[::]:4567", "tcp://[fd00::5]:4567"),
        ("::1", "", "tcp://[::1]:4567", "tcp://[::1]:4567"),
        ("10.0.0.5", "cluster.example", "tcp://10.0.0.5:4567", "tcp://cluster.example:4567"),
    ],
)
def test_the_published_address_is_one_that_clients_can_connect_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: str, advertise: str, bound: str, published: str
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "this-host")
    run_dir = make_run(tmp_path, bind=bind, advertise=advertise)
    run_dir.write_endpoint("replay", bound)
    assert run_dir.endpoint("replay") == published and run_dir.bind_address("replay") == bound


def test_keys_are_used_where_a_run_has_them_and_listens_on_tcp(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path, bind="127.0.0.1")
    assert run_dir.keys("actor-0") is None
    Ring(run_dir.key_folder)
    assert run_dir.keys("actor-0") is not None
    with pytest.raises(KeysError, match="actor-9.secret"):
        run_dir.keys("actor-9")
    assert make_run(tmp_path).keys("actor-9") is None


@POSIX
def test_sockets_are_in_the_runs_folder_where_nobody_removes_them(short: Path) -> None:
    run_dir = RunDir(short / "runs with $HOME" / "mine")
    assert run_dir.bind_address("replay") == f"ipc://{run_dir.path}/sockets/replay"
    assert stat.S_IMODE((run_dir.path / "sockets").stat().st_mode) == 0o700 and not list((run_dir.path / "sockets").iterdir())
    assert RunDir(run_dir.path).bind_address("replay") == run_dir.bind_address("replay"), "after a restart"
    run_dir.remove_sockets()
    assert not (run_dir.path / "sockets").exists()


@POSIX
def test_a_long_path_has_its_sockets_in_the_users_cache(tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(short))
    run_dir = RunDir(tmp_path / "runs" / ("a-very-long-name" * 10))
    assert run_dir.bind_address("replay") == f"ipc://{run_dir.sockets}/replay"
    assert run_dir.sockets is not None and run_dir.sockets.parent == short / "headrace"
    assert stat.S_IMODE(run_dir.sockets.stat().st_mode) == 0o700
    run_dir.remove_sockets()
    assert not run_dir.sockets.exists()


@POSIX
@pytest.mark.parametrize("closed", [False, True])
def test_a_folder_of_someone_else_stops_nobody(closed: bool, short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name follows from the run's path, so any account can make it; and HOME may be another account's."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(short / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    run_dir = RunDir(short / "run")
    own, *others = run_dir.socket_folders
    for folder in others:
        (folder / "not to be deleted").mkdir(parents=True)
    (short / "cache").chmod(0o000 if closed else 0o700)  # means nothing to root
    assert run_dir.bind_address("replay") == f"ipc://{own}/replay"
    run_dir.remove_sockets()
    (short / "cache").chmod(0o700)
    assert not own.exists() and all((folder / "not to be deleted").exists() for folder in others)


@POSIX
def test_a_folder_that_takes_no_sockets_or_that_others_can_enter_is_passed_over(
    short: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(short / "cache"))
    monkeypatch.setattr(tempfile, "tempdir", str(short))
    run_dir = RunDir(short / "run")
    run_dir.create()
    (run_dir.path / "sockets").mkdir()
    (run_dir.path / "sockets").chmod(0o755)
    (short / "cache").write_text("not a folder")
    assert run_dir.sockets is not None and run_dir.sockets.parent == short
    for folder in run_dir.socket_folders[2:]:
        folder.chmod(0o755)
    with pytest.raises(PermissionError, match="0700"):
        RunDir(run_dir.path).bind_address("replay")


def test_where_no_path_is_short_enough_it_is_a_loopback_port_that_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / ("x" * 120)))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("x" * 120)))
    run_dir = RunDir(tmp_path / ("run" * 30))
    run_dir.create()
    assert run_dir.bind_address("replay") == "tcp://127.0.0.1:*"
    run_dir.write_endpoint("replay", "tcp://127.0.0.1:4567")
    assert run_dir.bind_address("replay") == "tcp://127.0.0.1:4567"


def test_endpoints_are_read_back_and_damage_reads_as_absence(tmp_path: Path) -> None:
    run_dir = make_run(tmp_path)
    assert run_dir.endpoint("replay") is None
    run_dir.write_endpoint("replay", "ipc:///x")
    assert run_dir.endpoint("replay") == "ipc:///x"
    (run_dir.path / "endpoints" / "replay.json").write_text("{")
    assert run_dir.endpoint("replay") is None
    assert run_dir.wait_for_endpoint("replay", lambda: True) is None


@pytest.mark.parametrize("bind", ["", "127.0.0.1"])
def test_a_server_that_is_started_again_on_a_full_disk_has_the_endpoint_of_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bind: str
) -> None:
    run_dir = make_run(tmp_path, bind=bind)
    address, other = ("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5001") if bind else ("ipc:///x", "ipc:///y")
    run_dir.write_endpoint("replay", address)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    run_dir.write_endpoint("replay", address)
    assert run_dir.endpoint("replay") == address
    with pytest.raises(OSError, match="No space left"):
        run_dir.write_endpoint("replay", other)


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
def test_only_its_user_enters_a_run_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RunDir(tmp_path / "runs" / "mine").create()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "runs" / "mine").stat().st_mode) == 0o700
