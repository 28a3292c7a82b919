"""The folder of the log holds what replay has not written: nothing of it is followed, read for long, cut or overwritten."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from replay.log.files import ASIDE, open_new, open_regular, set_aside
from replay.log.journal import ID_FILE, STATE_FILE, run_id
from replay.log.segments import SEGMENT_BYTES, LogRefused, scan, segments
from replay.log.shard_folders import COUNT_FILE, stored_shards
from replay.log.state import DamagedState, read_state
from tests.harness.waiting import outcome
from tests.replay.log.test_restore import Incarnation
from tests.replay.log.test_segment_log import SPEC, sound_keys, written

pytestmark = pytest.mark.skipif(os.name != "posix", reason="links and pipes")
TEXT = b"a file of the user"


def test_what_is_no_regular_file_is_left_alone_and_reported_in_a_line_each(tmp_path: Path) -> None:
    folder, precious = tmp_path / "log", tmp_path / "precious"
    written(folder, 3)
    precious.write_bytes(TEXT)
    (folder / "1.segment").symlink_to(precious)
    (folder / "2.segment").symlink_to(tmp_path / "nothing")
    (folder / "3.segment").mkdir()
    os.mkfifo(folder / "4.segment")
    lines: list[str] = []
    assert sound_keys(scan(folder, SPEC, report=lines.append)) == [0, 1, 2]
    assert [Path(line.partition(" ")[0]).name for line in lines] == [f"{number}.segment" for number in (1, 2, 3, 4)]
    assert precious.read_bytes() == TEXT and not (tmp_path / "nothing").exists()
    assert len(segments(folder)) == 1


@pytest.mark.parametrize(
    ("content", "size", "reason"),
    [
        (b"", 2 << 30, "is larger than a segment"),
        (b"GIF89a", SEGMENT_BYTES // 64, "holds no record of replay"),
        (TEXT, len(TEXT), "holds no record of replay"),
    ],
)
def test_a_file_that_replay_cannot_have_written_is_set_aside_whole(
    content: bytes, size: int, reason: str, tmp_path: Path
) -> None:
    written(tmp_path, 3)
    other = tmp_path / "0000000000000007.segment"
    other.write_bytes(content)
    os.truncate(other, size)  # with a hole: no such memory or disk is used
    lines: list[str] = []
    found = scan(tmp_path, SPEC, report=lines.append)
    assert sound_keys(found) == [0, 1, 2] and found.damaged == 1
    assert lines == [f"{other} {reason}: it is now {other.name}{ASIDE}"]
    aside = other.with_name(other.name + ASIDE)
    assert not other.exists() and aside.stat().st_size == size
    with aside.open("rb") as file:
        assert file.read(len(content)) == content
    assert scan(tmp_path, SPEC).damaged == 0


def two_runs(tmp_path: Path, chunks: int) -> tuple[Incarnation, Path, Path]:
    """A run, a segment of another, and its copy in the first one's folder."""
    mine, other = (Incarnation(tmp_path / name) for name in ("mine", "other"))
    for run in (mine, other):
        run.insert(0, chunks)
        run.stop()
    foreign = tmp_path / "mine" / "0000000000000099.segment"
    shutil.copy(segments(tmp_path / "other")[0], foreign)
    return mine, segments(tmp_path / "other")[0], foreign


def test_a_segment_of_another_run_is_set_aside(tmp_path: Path) -> None:
    mine, other, foreign = two_runs(tmp_path, 12)
    again = Incarnation(tmp_path / "mine")
    assert again.ring.inserted_items == mine.ring.inserted_items and not foreign.exists()
    again.stop()
    assert foreign.with_name(foreign.name + ASIDE).read_bytes() == other.read_bytes()


def test_segments_of_several_runs_without_the_id_of_one_stay_where_they_are(tmp_path: Path) -> None:
    two_runs(tmp_path, 3)
    (tmp_path / "mine" / ID_FILE).write_text("0" * 32)
    files = sorted((tmp_path / "mine").iterdir())
    with pytest.raises(LogRefused, match="the 2 segments beside it are of 2 runs"):
        Incarnation(tmp_path / "mine")
    assert sorted((tmp_path / "mine").iterdir()) == files


def test_the_id_of_a_run_stays_and_one_that_is_none_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / ID_FILE
    found = run_id(path)
    assert run_id(path) == found and len(found) == 32
    path.write_bytes(b"\xff" * 40)
    assert run_id(path) != found


@pytest.mark.parametrize("content", [None, b"", b"\xff" * 32, b"0" * 32])
def test_the_segments_tell_the_id_where_the_file_is_lost_or_damaged(content: bytes | None, tmp_path: Path) -> None:
    first = Incarnation(tmp_path)
    first.insert(0, 12)
    first.stop()
    path = tmp_path / ID_FILE
    found, files = path.read_text(), segments(tmp_path)
    path.unlink() if content is None else path.write_bytes(content)
    again = Incarnation(tmp_path)
    again.stop()
    assert again.ring.inserted_items == first.ring.inserted_items and segments(tmp_path) == files and path.read_text() == found


def test_what_a_server_that_was_killed_has_left_is_deleted_at_the_next_start(tmp_path: Path) -> None:
    left, folder = tmp_path / f".{STATE_FILE}.123.partial", tmp_path / ".mine.partial"
    left.write_bytes(b"a part")
    folder.mkdir()
    Incarnation(tmp_path).stop()
    assert not left.exists() and folder.is_dir()


@pytest.mark.parametrize("make", [lambda path: os.mkfifo(path), lambda path: path.symlink_to("/dev/zero"), Path.mkdir])
def test_a_state_or_a_number_of_shards_that_is_no_regular_file_is_refused_at_once(
    make: Callable[[Path], None], tmp_path: Path
) -> None:
    for name, error in ((STATE_FILE, DamagedState), (COUNT_FILE, LogRefused)):
        make(tmp_path / name)
        assert isinstance(outcome(lambda: stored_shards(tmp_path) or read_state(tmp_path / STATE_FILE, 8)), error)


def test_a_new_segment_overwrites_nothing(tmp_path: Path) -> None:
    precious, path = tmp_path / "precious", tmp_path / "new.segment"
    precious.write_bytes(TEXT)
    path.symlink_to(precious)
    with open_new(path) as file:
        file.write(b"mine")
    assert precious.read_bytes() == TEXT and path.read_bytes() == b"mine" and not path.is_symlink()
    with open_new(path):
        pass
    assert path.with_name(path.name + ASIDE + ".1").read_bytes() == b"mine"
    with open_new(path):  # it was empty
        pass
    assert {each.name for each in tmp_path.iterdir()} == {"precious", *(f"new.segment{end}" for end in ("", ASIDE, f"{ASIDE}.1"))}


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "pipe")
    (tmp_path / "precious").write_bytes(TEXT)
    (tmp_path / "link to a file").symlink_to(tmp_path / "precious")
    for name in ("pipe", "link", "link to a file"):
        for change in (False, True):
            with pytest.raises(OSError):
                open_regular(tmp_path / name, change)
    assert set_aside(tmp_path / "link").is_symlink()
