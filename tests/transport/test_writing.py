"""Files that other programs have open, which Windows does not let one replace or delete."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.waiting import ROOT
from transport.files import writing
from transport.files.writing import replacing, write_atomically

RENAMES = re.compile(r"os\.(replace|rename|remove|unlink)\(|\.rename\(|\.replace\(\w*(path|target)\)")


class Open:
    """Stands in for a system call on a file that is open elsewhere until it was tried `times` times."""

    def __init__(self, call: Callable[..., None], times: int) -> None:
        self._call, self.left = call, times

    def __call__(self, *paths: Path, **options: bool) -> None:
        if self.left:
            self.left -= 1
            raise PermissionError(13, "The process cannot access the file because it is being used by another process")
        self._call(*paths, **options)


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Windows, and no patience with a file beyond a tenth of a second."""
    monkeypatch.setattr(writing, "WINDOWS", True)
    monkeypatch.setattr(writing, "TURN_SECONDS", 0.001)
    monkeypatch.setattr(writing, "PATIENCE_SECONDS", 0.1)
    return monkeypatch


def in_one_step(path: Path) -> None:
    with replacing(path) as file:
        file.write(b"new")


@pytest.mark.parametrize("write", [lambda path: write_atomically(path, b"new"), in_one_step])
def test_a_file_is_replaced_once_its_readers_have_closed_it(
    windows: pytest.MonkeyPatch, tmp_path: Path, write: Callable[[Path], None]
) -> None:
    windows.setattr(writing.os, "replace", Open(os.replace, times=3))
    (tmp_path / "status.json").write_bytes(b"old")
    write(tmp_path / "status.json")
    assert [(file.name, file.read_bytes()) for file in tmp_path.iterdir()] == [("status.json", b"new")]


@pytest.mark.parametrize(("times", "left", "printed"), [(3, False, ""), (10**9, True, "is open in another program")])
def test_a_file_that_is_not_needed_any_more_is_deleted_now_or_later(
    windows: pytest.MonkeyPatch, tmp_path: Path, times: int, left: bool, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "old.mp4"
    file.touch()
    windows.setattr(Path, "unlink", Open(Path.unlink, times))
    windows.setattr(Path, "unlink", lambda path, missing_ok=False, call=Path.unlink: call(path, missing_ok=missing_ok))
    writing.tidy(file)
    assert file.exists() == left and printed in (out := capsys.readouterr().out) and out.count("\n") == left


def test_a_file_that_may_not_be_deleted_is_no_open_file_on_other_systems(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(writing, "WINDOWS", False)
    call = Open(os.replace, times=1)
    monkeypatch.setattr(writing.os, "replace", call)
    with pytest.raises(PermissionError):
        writing.replace(tmp_path / "new", tmp_path / "old")
    assert call.left == 0


def test_what_is_really_open_is_replaced_when_it_is_closed(tmp_path: Path) -> None:
    target = tmp_path / "latest"
    target.write_bytes(b"old")
    with target.open("rb") as reader:
        writer = threading.Thread(target=write_atomically, args=(target, b"new"))
        writer.start()
        assert reader.read() == b"old"
    writer.join()
    assert target.read_bytes() == b"new"


def test_nothing_is_renamed_without_patience() -> None:
    alone = {"transport/files/writing.py", "deploy/install.py"}
    tops = "transport", "replay", "learner", "actors", "deploy", "headrace"
    sources = {path.relative_to(ROOT).as_posix(): path for top in tops for path in (ROOT / top).rglob("*.py")}
    found = [name for name, path in sources.items() if name not in alone and RENAMES.search(path.read_text("utf-8"))]
    assert found == [], "use transport.files.writing"
