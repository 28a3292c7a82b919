"""Commands that write a file which the user has named: links stay, and what is no file is written to, never replaced."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from deploy.cli.main import main
from tests.deploy.views.sharing.exported import make_run

SUITE = "seeds = 1\n[tasks.CartPole-v1]\n[contestants.headrace]\n"
COMMANDS = ["report mine --out {}", "suite mine.toml --report --out {}", "export mine {}"]
BEGIN = {"report": b"<!doctype", "suite": b"<!doctype", "export": b""}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    make_run(tmp_path / "runs" / "mine")
    (tmp_path / "mine.toml").write_text(SUITE)
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_link_stays_and_the_file_that_it_leads_to_is_replaced(command: str, folder: Path) -> None:
    (folder / "shared").mkdir()
    target = folder / "shared" / "target"
    target.write_bytes(b"old")
    (folder / "out.html").symlink_to(target)
    assert main(command.format("out.html").split()) == 0
    assert (folder / "out.html").is_symlink() and target.read_bytes() != b"old"
    assert [path.name for path in (folder / "shared").iterdir()] == ["target"]


@pytest.mark.skipif(os.name != "posix", reason="pipes with names")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_pipe_is_written_to(command: str, folder: Path) -> None:
    os.mkfifo(folder / "out.html")
    found: list[bytes] = []
    reader = threading.Thread(target=lambda: found.append((folder / "out.html").read_bytes()), daemon=True)
    reader.start()
    assert main(command.format("out.html").split()) == 0
    reader.join(20)
    assert found and len(found[0]) > 500 and found[0].startswith(BEGIN[command.split()[0]])
    assert stat.S_ISFIFO((folder / "out.html").stat().st_mode) and not (folder / "out.md").exists()


@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: command.split()[0])
def test_a_folder_is_refused_in_one_line(command: str, folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (folder / "out.html").mkdir()
    assert main(command.format("out.html").split()) in (2, 3)
    told = capfd.readouterr().err
    assert told.startswith("headrace: ") and "out.html" in told and told.count("\n") == 1
    assert not list((folder / "out.html").iterdir())
