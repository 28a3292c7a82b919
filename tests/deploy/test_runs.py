import errno
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy import runs
from deploy.cli import main as cli
from transport.files import file_lock
from transport.files.file_lock import try_lock, unlock


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir() if path != Path("runs/.locks"))


@pytest.mark.skipif(os.name != "posix", reason="links")
def test_a_folder_of_runs_that_is_a_link_to_itself_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    Path("runs").symlink_to("runs")
    assert cli.main(["list"]) == 0
    assert cli.main(["up", "--env", "CartPole-v1", "--algo", "dqn", "--run", "mine"]) == 3
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_is_not_utf_8_is_refused_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = os.fsencode(tmp_path) + b"/\xe4"
    os.mkdir(folder)
    monkeypatch.chdir(os.fsdecode(folder))
    assert cli.main(["up", "--env", "CartPole-v1", "--algo", "dqn", "--run", "mine"]) == 2
    assert "is not UTF-8" in capsys.readouterr().err and not os.listdir(folder)


def test_old_folders_get_growing_numbers_and_the_newest_are_kept() -> None:
    run = runs.run_dir("mine")
    for number in range(1, 6):
        run.create()
        aside = runs.set_aside(run)
        assert aside is not None and aside.name == f"mine.{number}"
        runs.remove_aside(run, 2)
    assert names() == ["mine.4", "mine.5"], "a number is never used again while a later one is there"
    run.create()
    runs.set_aside(run)
    assert [path.name for path in runs.remove_aside(run, 2)] == ["mine.4"] and names() == ["mine.5", "mine.6"]


def test_none_may_be_kept_and_a_folder_that_is_up_or_of_another_run_stays() -> None:
    run = runs.run_dir("mine")
    for _ in range(2):
        run.create()
        runs.set_aside(run)
    for name in ("mine.old", "mines.1"):
        runs.run_dir(name).create()
    with runs.locked(runs.run_dir("mine.1")):
        assert [path.name for path in runs.remove_aside(run, 0)] == ["mine.2"]
    assert names() == ["mine.1", "mine.old", "mines.1"]


def test_a_run_that_was_named_like_an_old_folder_or_was_started_again_stays() -> None:
    run, named = runs.run_dir("v1"), runs.run_dir("v1.3")
    named.create()
    for _ in range(2):
        run.create()
        runs.set_aside(run)
    assert names() == ["v1.3", "v1.4", "v1.5"]
    runs.keep(runs.run_dir("v1.4"))
    assert [path.name for path in runs.remove_aside(run, 0)] == ["v1.5"] and names() == ["v1.3", "v1.4"]


def test_the_lock_holds_while_the_folder_moves_and_goes_with_a_name_that_has_no_folder() -> None:
    run = runs.run_dir("mine")
    run.create()
    with runs.locked(run):
        runs.set_aside(run)
        assert runs.is_up(run) and not runs.is_up(runs.run_dir("mine.1"))
        with pytest.raises(runs.AlreadyUp), runs.locked(run):
            pass
        run.create()
    assert run.lock.exists() and not runs.is_up(run)
    with runs.locked(run):
        run.path.rename("elsewhere")
    assert names() == ["mine.1"] and not run.lock.exists()
    with runs.locked(run), pytest.raises(runs.AlreadyUp), runs.locked(run):
        pass


@pytest.mark.skipif(os.name != "posix", reason="Windows has other calls")
def test_a_file_system_without_locks_is_told_and_not_taken_for_a_run_that_is_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def flock(file: object, operation: int) -> None:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    with pytest.raises(OSError, match=r"no file locks, which a run needs: .*\.locks/mine"), runs.locked(runs.run_dir("mine")):
        pass


@pytest.mark.skipif(os.name != "posix", reason="Windows has exclusive locks only")
def test_two_looks_at_once_do_not_make_a_run_seem_up(monkeypatch: pytest.MonkeyPatch) -> None:
    run = runs.run_dir("mine")
    seen: list[bool] = []

    def look_meanwhile(file: Any) -> None:
        if not seen:
            seen.append(True)
            seen.append(runs.is_up(run))
        unlock(file)

    with runs.locked(run):
        run.create()
    monkeypatch.setattr(file_lock, "unlock", look_meanwhile)
    assert not runs.is_up(run) and seen == [True, False]


@pytest.mark.skipif(os.name != "posix", reason="an open file cannot be removed")
def test_a_lock_of_a_file_that_another_process_has_removed_is_no_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both had opened it before: the one has locked and removed it, the other gets the lock of a file without a name."""
    run = runs.run_dir("mine")
    removed: list[int] = []

    def lock_late(file: Any) -> bool:
        if not removed:
            removed.append(run.lock.stat().st_ino)
            run.lock.unlink()
        return try_lock(file)

    monkeypatch.setattr(runs, "try_lock", lock_late)
    with runs.locked(run):
        assert removed and runs.is_up(run)


@pytest.mark.skipif(os.name != "posix", reason="modes of files")
def test_other_users_of_the_machine_cannot_take_a_lock() -> None:
    before = os.umask(0)
    try:
        with runs.locked(run := runs.run_dir("mine")):
            assert (run.lock.stat().st_mode & 0o777, run.lock.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    finally:
        os.umask(before)
