"""Commands whose standard streams are closed or lack letters, or whose reader has left."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from actors.errors import EnvError, in_one_line
from deploy.children import ROOT
from deploy.cli import main as cli
from deploy.cli.hosts import join
from deploy.cli.policies import common
from tests.deploy.views.web.made_up import made_up
from transport.text import say

pytestmark = pytest.mark.skipif(os.name != "posix", reason="closes file descriptors")

HEADRACE = [sys.executable, "-m", "headrace"]
UP = """
up --env CartPole-v1 --actors 1 --total-steps 300 --algorithm.hidden 16 --replay.min-size 100 --learner.batch-size 16
--evaluator.enabled false --deploy.record-seconds 0.5 --device cpu --run mine
""".split()


def run_without(folder: Path, *closed: int, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Runs the command with these file descriptors closed."""
    shell = " ".join(f"{number}>&-" for number in closed)
    command = ["sh", "-c", f'exec "$@" {shell}', "sh", *HEADRACE, *words]
    return subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280)


def test_a_file_does_not_take_the_place_of_a_stream_that_is_closed(tmp_path: Path) -> None:
    code = """
from deploy.cli.streams import open_closed
open_closed()
print("lost")
with open("file", "w") as file:
    file.write(str(file.fileno()))
"""
    command = ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, cwd=tmp_path, timeout=60).returncode == 0
    assert int((tmp_path / "file").read_text()) > 2


@pytest.mark.parametrize("closed", [(1,), (2,), (0, 1, 2)])
def test_a_command_does_without_its_streams(closed: tuple[int, ...], tmp_path: Path) -> None:
    done = run_without(tmp_path, *closed, words=["presets"])
    assert done.returncode == 0 and "Traceback" not in done.stderr
    refused = run_without(tmp_path, *closed, words=["up", "--algo", "dqm"])
    assert refused.returncode == 2 and "Traceback" not in refused.stderr


@pytest.mark.parametrize(("typed", "status"), [(["--version"], 0), (["list"], 0), (["up", "--algo", "dqm"], 2)])
def test_a_command_whose_reader_has_left_before_it_prints_keeps_its_exit_status(
    typed: list[str], status: int, tmp_path: Path
) -> None:
    (tmp_path / "runs" / "mine").mkdir(parents=True)
    (tmp_path / "runs" / "mine" / "config.toml").write_text("format = 3\n")
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    for broken in ("stdout", "stderr"):
        reading, writing = os.pipe()
        os.close(reading)
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, broken: writing}
        with os.fdopen(writing, "wb"):
            done = subprocess.run([*HEADRACE, *typed], cwd=tmp_path, env=buffered, timeout=280, **streams)  # type: ignore[call-overload]
        assert done.returncode == status and b"BrokenPipe" not in (done.stderr or b"")


def test_a_letter_that_stdout_does_not_have_is_a_question_mark(tmp_path: Path) -> None:
    ascii_only = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*HEADRACE, "--help"], cwd=tmp_path, env=ascii_only, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and done.stdout.startswith("usage: headrace COMMAND ?\n") and not done.stderr


def test_a_host_whose_reader_has_left_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ssh there headrace join …`, and the connection is cut: its actors go on."""
    reading, writing = os.pipe()
    os.close(reading)
    (tmp_path / "ticket").touch()
    served = []

    def serve(*arguments: object) -> tuple[str, int, str]:
        for _ in range(2):
            print("starting actor-0", flush=True)
        served.append(arguments)
        return "host-0", 0, ""

    monkeypatch.setattr(join, "serve", serve)
    monkeypatch.setattr(join, "read_ticket", lambda path: path)
    with os.fdopen(writing, "w") as stream, contextlib.redirect_stdout(stream):
        status = cli.main(["join", "tcp://127.0.0.1:1", "--ticket", str(tmp_path / "ticket"), "--places", "1"])
    assert status == 0 and served


def test_the_page_beside_a_run_goes_on_when_its_reader_has_left(tmp_path: Path) -> None:
    pytest.importorskip("starlette")
    run = made_up(tmp_path / "runs" / "mine", seconds=20)
    reading, writing = os.pipe()
    os.close(reading)
    command, pipe = [sys.executable, "-m", "deploy.cli.browser.beside", str(run.path)], subprocess.PIPE
    with os.fdopen(writing, "wb") as stream:
        page = subprocess.run(command, cwd=ROOT, input=b"", stdout=stream, stderr=pipe, timeout=280)
    assert page.returncode == 0 and not page.stderr


@pytest.mark.slow
@pytest.mark.flow
def test_a_run_without_stdout_goes_on_with_its_log_in_the_folder(tmp_path: Path) -> None:
    done = run_without(tmp_path, 1, words=UP)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "run mine stopped: " in (tmp_path / "runs" / "mine" / "logs" / "run.log").read_text()


@pytest.mark.flow
@pytest.mark.slow
@pytest.mark.parametrize("lines", [0, 1, 3])
def test_a_run_whose_reader_leaves_goes_on_with_its_log_in_the_folder(lines: int, tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    with subprocess.Popen([*HEADRACE, *UP], cwd=tmp_path, stdout=pipe, stderr=pipe, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        for _ in range(lines):
            running.stdout.readline()
        running.stdout.close()
        assert "Traceback" not in running.stderr.read()
    assert running.returncode == 0
    assert "run mine stopped: " in (tmp_path / "runs" / "mine" / "logs" / "run.log").read_text()


def test_what_a_simulator_prints_or_raises_reaches_the_terminal_without_escape_sequences(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    title = "\x1b]0;mine\x07\x1b[2Jred"
    code = f"import sys; sys.stderr.write({title!r} + ' printed\\n'); raise ValueError({title!r} + ' raised')"
    monkeypatch.setattr(common, "python_command", lambda *words, python: [sys.executable, "-c", code])
    assert common.child("actors.evaluation.evaluate") == 1
    told = capfd.readouterr().err
    assert "red printed\n" in told and "ValueError: red raised\n" in told and "\x1b" not in told and "\x07" not in told
    assert in_one_line(ValueError(title)) == "ValueError: red" and in_one_line(EnvError(title)) == "red"
    say(title)
    assert capfd.readouterr().out == "red\n"
