"""Files are replaced whole, also in a power cut, and where other programs have them open, which Windows forbids."""

from __future__ import annotations

import os
import re
import stat
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.harness.power import Disk
from tests.harness.waiting import ROOT
from transport.files import writing
from transport.files.writing import append, replacing, write_atomically, write_durably
from transport.files.writing import writing as writing_to

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="links and devices")
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
        with writing_to(tmp_path / name) as file:
            file.write(b"new")
    with writing_to(Path(os.devnull)) as file:
        file.write(b"new")
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert all((tmp_path / name).is_symlink() for name in ("null", "there", "not-yet"))
    assert [(tmp_path / name).read_bytes() for name in ("a", "b", "plain")] == [b"new"] * 3
    with pytest.raises(RuntimeError), writing_to(tmp_path / "there") as file:
        file.write(b"half")
        raise RuntimeError
    assert (tmp_path / "a").read_bytes() == b"new" and not list(tmp_path.glob(".*")), "the old file stays"


def test_a_file_that_is_appended_to_is_set_aside_at_its_limit(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    assert [append(path, b"12345", limit_bytes=10, kept=1) for _ in range(5)] == [False, True, False, True, False]
    assert path.read_bytes() == b"12345" and path.with_name("run.jsonl.1").read_bytes() == b"1234512345"
    assert len(list(tmp_path.iterdir())) == 2


def test_nothing_is_renamed_without_patience() -> None:
    alone = {"transport/files/writing.py", "deploy/install.py"}
    tops = "transport", "replay", "learner", "actors", "deploy", "headrace"
    sources = {path.relative_to(ROOT).as_posix(): path for top in tops for path in (ROOT / top).rglob("*.py")}
    found = [name for name, path in sources.items() if name not in alone and RENAMES.search(path.read_text("utf-8"))]
    assert found == [], "use transport.files.writing"
