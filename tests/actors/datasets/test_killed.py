"""A data set whose writer is killed is whole, or not there; the next writer makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.datasets.base import open_source
from deploy.children import child_environment, python_command
from tests.actors.datasets.episodes import BOX, REALS, same, some
from tests.actors.datasets.test_datasets import LENGTHS, to_minari, to_npz, to_parquet

pytestmark = pytest.mark.skipif(os.name != "posix", reason="signals")
WRITERS: dict[str, Callable[..., str]] = {"npz": to_npz, "parquet": to_parquet, "minari": to_minari}
PLACES = {"npz": "data.npz", "parquet": "data", "minari": "minari/headrace/toy-v0"}
EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir")
KILLS = 20


def write(form: str, folder: Path, last: int) -> int:
    """Writes a data set; killed before the file operation number `last` in the folder. Returns how many there were."""
    count = 0

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS and str(arguments[0]).startswith(str(folder)):
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)
    WRITERS[form](folder, some(BOX, REALS, LENGTHS), (BOX, REALS))
    return count


@pytest.mark.parametrize("form", WRITERS)
def test_a_killed_writer_loses_and_doubles_nothing(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if form != "npz":
        pytest.importorskip({"parquet": "pyarrow"}.get(form, form))
    command = python_command("tests.actors.datasets.test_killed", form)

    def attempt(folder: Path, last: int) -> subprocess.CompletedProcess[str]:
        """In a folder that may have what earlier attempts have left."""
        folder.mkdir(exist_ok=True)
        environment = child_environment(MINARI_DATASETS_PATH=str(folder / "minari"), PYTHONPATH=os.getcwd())
        return subprocess.run([*command, str(folder), str(last)], env=environment, capture_output=True, text=True, timeout=120)

    whole = attempt(tmp_path / "first", 0)
    assert whole.returncode == 0, whole.stderr
    assert int(whole.stdout.splitlines()[-1]) > 1
    kills = 0
    for number in range(KILLS):  # each time before the first file operation, then before the second, and so on
        folder, last = tmp_path / str(number), 1
        while (done := attempt(folder, last)).returncode == -signal.SIGKILL:
            kills, last = kills + 1, last + 1
        assert done.returncode == 0 or (folder / PLACES[form]).exists(), done.stderr
        check(form, folder, monkeypatch)
        if kills >= KILLS:
            return
    pytest.fail(f"killed {kills} times only")


def check(form: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The data set is what was to be written, and nothing else of it is there."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(folder / "minari"))
    place = folder / PLACES[form]
    found = list(open_source("minari:headrace/toy-v0" if form == "minari" else str(place)).episodes())
    assert [len(one.rewards) for one in found] == LENGTHS
    for ours, theirs in zip(some(BOX, REALS, LENGTHS), found, strict=True):
        same(ours, theirs)
    assert {path.name for path in folder.iterdir() if not path.name.startswith(".")} <= {"minari", place.name}
    assert not list(folder.glob("minari/.*"))


if __name__ == "__main__":
    print(write(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])))
