"""A person, another program or the disk may have changed any file of a run: its readers say so in one line, or do without."""

from __future__ import annotations

import io
import os
import random
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

import headrace
from actors.settings import read_settings
from deploy import runs
from deploy.cli import main as cli
from deploy.recorded.run import RecordedRun
from deploy.reporting.logs import Log
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.service import hosted
from deploy.views.web.document import PageFollower
from learner.config import read_settings as read_learner
from learner.serving.publish import announced
from learner.weights.checkpoint import Checkpoints
from tests.deploy.cli.test_main import quiet_world
from tests.harness.folder import stopped_run
from transport.files.writing import append
from transport.metrics import append_record
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
HUGE = b"9" * 400


def replaced(pattern: bytes, new: bytes) -> Callable[[bytes], bytes]:
    return lambda data: re.sub(pattern, new, data)


def middle(data: bytes) -> bytes:
    return data[: len(data) // 2] + b"\xff" + data[len(data) // 2 + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "text that is not UTF-8": replaced(rb'(": ?|= ?)"', b'\\1"\xff'),
    "escape sequences": replaced(rb'(": ?|= ?)"', rb'\1"\\u001b]0;title\\u0007\\u001b[2J\\n'),
    "nested too deep": lambda data: b"[" * 100_000,
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "a byte that is not UTF-8": middle,
    "a key that is not UTF-8": lambda data: data.replace(b'"', b'"\xff', 1),
    "random bytes": lambda data: random.Random(1).randbytes(max(len(data), 40)),
    "zeros": lambda data: bytes(len(data)),
    "UTF-16": lambda data: data.decode("latin1").encode("utf-16"),
    "a list": lambda data: b"[]\n",
    "a number": lambda data: b"7\n",
    "null": lambda data: b"null\n",
    "no keys": lambda data: b"{}\n",
    "an infinite number": lambda data: b"Infinity\n",
    "a number of many digits": lambda data: b"9" * 5000,
    "numbers of many digits": replaced(rb"\d+", HUGE),
    "numbers beyond 64 bits": replaced(rb"\d+", b"9" * 25),
    "negative numbers": replaced(rb"(?<=[:\[,= ])\d+(\.\d+)?", b"-7"),
    "huge reals": replaced(rb"\d+\.\d+", b"1e300"),
    "huge whole numbers": replaced(rb"(?<=[:\[,= ])\d+(?![\d.])", b"4611686018427387903"),
}
QUICK = 3  # of the damages are tried in each test run
COMMANDS = ("list", "status q", "status q --json", "report q --out page.html", "logs q", "trace q 5", "down q")


def readers(run: RunDir) -> Iterator[Callable[[], object]]:
    """What reads files of a run besides the commands."""
    yield lambda: announced(run)
    yield lambda: Checkpoints(run.checkpoints, 3).newest(lambda line: None)
    yield lambda: (read_settings(run, 0), read_settings(run))
    yield lambda: read_learner(run)
    yield lambda: (hosted(runs.read_status(run) or {}), Curriculum(run.curriculum), run.endpoint("supervisor"))
    yield lambda: run.keys("operator")
    yield lambda: headrace.load(str(run.path))


def check(run: RunDir, put: Callable[[], object], commands: tuple[str, ...]) -> None:
    """Raises whatever is not one line. `put` damages the file."""
    for command in commands:
        put()
        said = io.StringIO()
        with redirect_stdout(said), redirect_stderr(said):
            assert cli.main(command.split()) in (0, 2, 3)
        assert said.getvalue().replace("\n", "").isprintable(), said.getvalue()  # a terminal obeys escape sequences
    put()
    recorded = RecordedRun(run)
    recorded.read()
    PageFollower(recorded).whole()
    for read in readers(run):
        try:
            read()
        except (ValueError, OSError) as error:
            assert str(error) and "\n" not in str(error), error


def files_of(run: RunDir) -> list[Path]:
    return [path for path in sorted(run.path.rglob("*")) if path.is_file() and not path.name.startswith(".")]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = stopped_run(tmp_path_factory.mktemp("sound") / "runs" / "q")
    run.write_endpoint("supervisor", "tcp://127.0.0.1:9")
    run.curriculum.write_bytes(b'{"level": 1, "levels": 3}')
    run.evaluated.write_bytes(b'{"policy_version": 3, "episodes": 5}\n')
    run.videos.mkdir()
    (run.videos / "videos.json").write_bytes(b"[]")
    return run


def faults(sound: RunDir, ways: list[str], commands: tuple[str, ...]) -> list[str]:
    found = []
    for original in files_of(sound):
        for way in ways:
            shutil.copytree(sound.path, "runs/q")
            content = DAMAGES[way](original.read_bytes())
            try:
                path = Path("runs/q") / original.relative_to(sound.path)
                check(RunDir(Path("runs/q")), partial(path.write_bytes, content), commands)
            except Exception as error:
                found.append(f"{original.name}, {way}: {type(error).__name__}: {error}")
            shutil.rmtree("runs/q")
    return found


def test_a_damaged_file_ends_no_reader_with_a_traceback(sound: RunDir) -> None:
    assert not faults(sound, list(DAMAGES)[:QUICK], COMMANDS[:2])


@pytest.mark.slow
def test_a_file_damaged_in_any_way_ends_no_command_with_a_traceback(sound: RunDir) -> None:
    assert not faults(sound, list(DAMAGES), COMMANDS)


def socket_at(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


# By what stands in place of a file, which is not there.
KINDS: dict[str, Callable[[Path], object]] = {
    "a pipe": lambda path: os.mkfifo(path),
    "a folder": Path.mkdir,
    "a link to a device": lambda path: path.symlink_to("/dev/zero"),
    "a socket": socket_at,
}


def no_files(sound: RunDir, kinds: list[str], commands: tuple[str, ...]) -> list[str]:
    """What hangs, or is not one line, where anything else stands in place of a file."""

    def late(number: int, frame: object) -> None:
        raise TimeoutError("it hangs")

    found, before = [], signal.signal(signal.SIGALRM, late)
    for original in [sound.path / "run.log", *files_of(sound)]:
        for kind in kinds:
            shutil.copytree(sound.path, "runs/q")
            path = Path("runs/q") / original.relative_to(sound.path)

            def put(path: Path = path, kind: str = kind) -> None:
                if path.is_file():
                    path.unlink()
                if not os.path.lexists(path):
                    KINDS[kind](path)

            signal.alarm(20)
            try:
                check(RunDir(Path("runs/q")), put, commands)
                put()
                write(RunDir(Path("runs/q")))
            except Exception as error:
                found.append(f"{original.name}, {kind}: {type(error).__name__}: {error}")
            signal.alarm(0)
            shutil.rmtree("runs/q")
    signal.signal(signal.SIGALRM, before)
    return found


def write(run: RunDir) -> None:
    """What processes add to the files of a run."""
    log = Log(run, 1_000_000, 1, None, "all")
    log.line("supervisor", "a line")
    log.close()
    append(run.events, b"{}\n", 1_000, 1)
    for path in (run.metrics("learner"), run.metrics("replay")):
        append_record(path, {"steps": 1.0})
    if run.log("run").is_file() and run.metrics("learner").is_file():
        assert "a line" in run.log("run").read_text()
        return
    raise AssertionError("a log that is no file is not written anew")


@pytest.mark.skipif(os.name != "posix", reason="pipes and sockets with names")
def test_a_pipe_in_place_of_a_file_holds_no_reader_and_no_writer(sound: RunDir) -> None:
    assert no_files(sound, ["a pipe"], COMMANDS[:1]) == []


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="pipes and sockets with names")
def test_nothing_in_place_of_a_file_holds_or_ends_a_command(sound: RunDir) -> None:
    assert no_files(sound, list(KINDS), COMMANDS) == []
