"""A data set whose writer is killed is whole, or not there; the next writer makes it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
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
LIBRARIES = {"npz": "numpy", "parquet": "pyarrow.parquet", "minari": "minari"}
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

    os.environ["MINARI_DATASETS_PATH"] = str(folder / "minari")
    sys.addaudithook(watch)
    WRITERS[form](folder, some(BOX, REALS, LENGTHS), (BOX, REALS))
    return count


def serve(form: str) -> None:
    """Writes once for each line, a number and a folder, and answers with the exit status and the number of file operations. Each
    writer is a fork: to import its libraries takes many times as long as to write."""
    __import__(LIBRARIES[form])
    for line in sys.stdin:
        last, folder = line.rstrip("\n").split(" ", 1)
        reader, writer = os.pipe()
        if not (child := os.fork()):
            try:
                os.write(writer, b"%d" % write(form, Path(folder), int(last)))
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as counted:
            count = int(counted.read() or 0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), count, flush=True)


@pytest.mark.parametrize("form", WRITERS)
def test_a_killed_writer_loses_and_doubles_nothing(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip(LIBRARIES[form])
    command = python_command("tests.actors.datasets.test_killed", form)
    environment = child_environment(PYTHONPATH=os.getcwd())
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writers:
        assert writers.stdin and writers.stdout

        def attempt(folder: Path, last: int) -> tuple[int, int]:
            """In a folder that may have what earlier attempts have left."""
            folder.mkdir(exist_ok=True)
            print(last, folder, file=writers.stdin, flush=True)
            status, count = writers.stdout.readline().split()
            return int(status), int(count)

        status, count = attempt(tmp_path / "first", 0)
        assert status == 0 and count > 1
        kills = number = 0
        while kills < KILLS:  # in each folder before the first file operation, then before the second, and so on
            folder, last, number = tmp_path / str(number), 1, number + 1
            while (status := attempt(folder, last)[0]) == -signal.SIGKILL:
                kills, last = kills + 1, last + 1
            assert last > 1 and (status == 0 or (folder / PLACES[form]).exists())
            check(form, folder, monkeypatch)


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
    serve(sys.argv[1])
