"""A run's folder."""

from __future__ import annotations

import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from transport.run_dir import RunDir, write_atomically


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """XDG_RUNTIME_DIR: pytest's own folders are too deep for a socket's path."""
    with tempfile.TemporaryDirectory() as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        yield Path(folder)


@pytest.mark.skipif(sys.platform == "win32", reason="no ipc sockets there")
def test_sockets_are_in_a_short_folder_that_only_the_user_can_enter(tmp_path: Path, runtime: Path) -> None:
    run_dir = RunDir(tmp_path / "runs" / ("a-very-long-name" * 10))
    address = run_dir.bind_address("replay")
    assert address == f"ipc://{run_dir.sockets}/replay" and len(str(run_dir.sockets)) < len(str(run_dir.path))
    assert stat.S_IMODE(run_dir.sockets.stat().st_mode) == 0o700
    assert RunDir(run_dir.path).bind_address("replay") == address  # after a restart
    run_dir.remove_sockets()
    assert not run_dir.sockets.exists()


@pytest.mark.skipif(sys.platform == "win32", reason="no ipc sockets there")
def test_a_socket_folder_that_other_users_can_enter_is_refused(tmp_path: Path, runtime: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.sockets.mkdir(mode=0o755)
    run_dir.sockets.chmod(0o755)
    with pytest.raises(PermissionError, match="0700"):
        run_dir.bind_address("replay")


def test_a_path_too_long_for_a_socket_falls_back_to_a_loopback_port_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / ("x" * 120)))
    run_dir = RunDir(tmp_path / "run")
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


def test_an_atomic_write_leaves_no_other_file(tmp_path: Path) -> None:
    target = tmp_path / "status.json"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two" and list(tmp_path.iterdir()) == [target]
