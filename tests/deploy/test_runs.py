from pathlib import Path

import pytest

from deploy import runs


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def names() -> list[str]:
    return sorted(path.name for path in Path("runs").iterdir())


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
    for name in ("mine.1", "mine.2", "mine.old", "mines.1"):
        runs.run_dir(name).create()
    with runs.locked(runs.run_dir("mine.1")):
        assert [path.name for path in runs.remove_aside(run, 0)] == ["mine.2"]
    assert names() == ["mine.1", "mine.old", "mines.1"]
