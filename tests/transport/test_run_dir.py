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

import msgspec
import pytest

from tests.harness.power import Disk
from transport.files.writing import append, write_atomically, write_durably, writing
from transport.run_dir import RunDir, TransportSettings

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="no ipc sockets there")


@pytest.fixture
def short() -> Iterator[Path]:
    """pytest's own folders are too deep for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


@POSIX
def test_a_file_that_is_written_durably_is_old_or_new_after_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "config.toml"
    with monkeypatch.context() as recording:
        disk = Disk(tmp_path / "run", recording)
        write_durably(path, b"first")
        assert [held[path.name] for held in disk.held()] == [b"first"] * 3
        held, replaced = [], os.replace

        def replacing_later(source: Path, target: Path) -> None:
            replaced(source, target)
            held.extend(disk.held())

        recording.setattr(os, "replace", replacing_later)
        write_durably(path, b"second")
    assert {one[path.name] for one in held} == {b"first", b"second"}


@POSIX
def test_what_the_user_has_named_is_written_to_and_never_turned_into_something_else(tmp_path: Path) -> None:
    for name, kind in (("null", "/dev/null"), ("there", tmp_path / "a"), ("not-yet", tmp_path / "b")):
        (tmp_path / name).symlink_to(kind)
    (tmp_path / "a").write_bytes(b"old")
    for name in ("null", "there", "not-yet", "plain"):
        with writing(tmp_path / name) as file:
            file.write(b"new")
    with writing(Path(os.devnull)) as file:
        file.write(b"new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert all((tmp_path / name).is_symlink() for name in ("null", "there", "not-yet"))
    assert [(tmp_path / name).read_bytes() for name in ("a", "b", "plain")] == [b"new"] * 3
    with pytest.raises(RuntimeError), writing(tmp_path / "there") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"new" and not list(tmp_path.glob(".*")), "the old file stays"


@POSIX
def test_a_server_has_its_fixed_port_and_another_any_that_is_free(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    run.create()
    run.settings("transport").write_bytes(msgspec.json.encode(TransportSettings(bind="127.0.0.1", ports={"replay-1": 7705})))
    assert [run.bind_address(role) for role in ("replay-1", "weights")] == ["tcp://127.0.0.1:7705", "tcp://127.0.0.1:*"]


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
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
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
    run_dir = RunDir(tmp_path / "run")
    run_dir.create()
    run_dir.settings("transport").write_text(json.dumps({"bind": bind}))
    address, other = ("tcp://127.0.0.1:5000", "tcp://127.0.0.1:5001") if bind else ("ipc:///x", "ipc:///y")
    run_dir.write_endpoint("replay", address)

    def full(path: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    run_dir.write_endpoint("replay", address)
    assert run_dir.endpoint("replay") == address
    with pytest.raises(OSError, match="No space left"):
        run_dir.write_endpoint("replay", other)


def test_an_atomic_write_leaves_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "status.json"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two" and list(tmp_path.iterdir()) == [target]


@pytest.mark.skipif(sys.platform == "win32", reason="modes of files")
def test_only_its_user_enters_a_run_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        RunDir(tmp_path / "runs" / "mine").create()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "runs" / "mine").stat().st_mode) == 0o700


def test_a_file_that_is_appended_to_is_set_aside_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert [append(path, b"12345", limit_bytes=10, kept=1) for _ in range(5)] == [False, True, False, True, False]
    assert path.read_bytes() == b"12345" and path.with_name("run.jsonl.1").read_bytes() == b"1234512345"
    assert len(list(tmp_path.iterdir())) == 2
