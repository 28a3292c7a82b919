"""`headrace web` and `headrace up --web`."""

from __future__ import annotations

import http.client
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import get_args
from urllib.parse import urlsplit

import pytest

from deploy.children import child_environment, python_command
from deploy.cli import main as cli
from deploy.cli.browser import beside, web
from deploy.cli.browser.web import Buttons, TheseRuns
from learner.devices import installing
from tests.deploy.views.web.made_up import made_up
from tests.harness.waiting import PATIENCE_SECONDS, wait_until
from transport.messages.control import What

LINK = re.compile(r"http://127\.0\.0\.1:\d+/\?token=\S+")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["web"], "there is no run"),
        (["web", "nope"], "no run named"),
        (["web", "mine", "--all"], "--all shows every run"),
        (["web", "--all", "--port", "70000"], "there is no port 70000"),
        (["up", "--env", "CartPole-v1", "--web", "--detach"], "start `headrace web` after it"),
    ],
)
def test_a_mistake_is_one_line(typed: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(typed) == cli.USAGE
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_without_the_extra_its_name_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(web, "REQUIRED", ("no_such_library",))
    assert cli.main(["web", "--all"]) == cli.USAGE
    assert installing.headrace("web") in capsys.readouterr().err


def test_buttons_of_a_run_that_is_not_up_say_so(folder: Path) -> None:
    run = made_up(folder / "runs" / "mine", seconds=60)
    assert Buttons().stop(run) == "run mine is not up"
    assert all(Buttons().order(run, what).startswith("run mine is not up;") for what in get_args(What))
    assert "is not up; start it with" in Buttons().scale(run, 3) and "1 to 1024" in Buttons().scale(run, 0)


def test_all_shows_runs_that_begin_later(folder: Path) -> None:
    every, none = TheseRuns(None), TheseRuns([])
    assert every.first() is None and not every.all()
    made_up(folder / "runs" / "mine", seconds=60)
    assert every.first() == "mine" and list(every.all()) == ["mine"] and not none.all()


def test_runs_are_compared_with_those_in_the_same_folder(folder: Path) -> None:
    mine = made_up(folder / "elsewhere" / "mine", seconds=60)
    for place in ("elsewhere", "runs"):
        made_up(folder / place / f"in-{place}", seconds=60)
    assert set(TheseRuns([mine]).beside()) == {"mine", "in-elsewhere"} and list(TheseRuns([mine]).all()) == ["mine"]
    assert set(TheseRuns(None).beside()) == {"in-runs"} and not TheseRuns([]).beside()


def test_a_run_that_is_removed_while_runs_are_listed_is_no_error(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = made_up(folder / "runs" / "mine", seconds=60)
    removed = folder / "runs" / "removed" / "config.toml"
    monkeypatch.setattr(Path, "glob", lambda place, pattern: [removed, mine.config])
    assert list(TheseRuns([mine]).beside()) == ["mine", "removed"] and TheseRuns([mine]).first() == "mine"


def status_of(link: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(link).port, timeout=PATIENCE_SECONDS)
    try:
        connection.request("GET", link[link.index("/?") :])
        return connection.getresponse().status
    finally:
        connection.close()


@pytest.mark.flow
@pytest.mark.skipif(os.name != "posix", reason="Ctrl-C")
def test_the_command_prints_its_links_and_ctrl_c_ends_it_quietly(folder: Path) -> None:
    made_up(folder / "runs" / "mine", seconds=60)
    command = python_command("deploy.cli", "web", "mine")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=child_environment()) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        links = LINK.findall("".join(lines))
        assert [status_of(link) for link in links] == [200, 200] and "control=" in links[1]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=PATIENCE_SECONDS)
        assert (process.returncode, errors) == (cli.DONE, "")


@contextmanager
def printing_into(path: Path) -> Iterator[Path]:
    """What other processes print, as a file. `capfd` empties its file when it is asked, and loses what they print meanwhile."""
    before = os.dup(1)
    with path.open("wb") as file:
        os.dup2(file.fileno(), 1)
    try:
        yield path
    finally:
        os.dup2(before, 1)
        os.close(before)


def printed_links(printed: Path) -> list[str]:
    """The links that another process prints."""

    def found() -> list[str]:
        text = printed.read_text()
        links = LINK.findall(text)
        return links if len(links) == 2 and text.endswith("\n") else []

    return wait_until(found, what="two links are printed")


@pytest.mark.flow
def test_the_page_beside_a_run_ends_with_it(folder: Path) -> None:
    run = made_up(folder / "runs" / "mine", seconds=60)
    with printing_into(folder / "printed") as printed, beside.page_beside(run):
        links = printed_links(printed)
        assert status_of(links[0]) == 200
    with pytest.raises(OSError):
        status_of(links[0])


@pytest.mark.flow
def test_the_page_shows_the_end_of_its_run(folder: Path) -> None:
    run = made_up(folder / "runs" / "mine", seconds=60)
    with printing_into(folder / "printed") as printed, beside.page_beside(run):
        links = printed_links(printed)
        connection = http.client.HTTPConnection("127.0.0.1", urlsplit(links[0]).port, timeout=PATIENCE_SECONDS)
        connection.request("GET", links[0][links[0].index("/?") :])
        answer = connection.getresponse()
        cookie = str(answer.getheader("set-cookie")).partition(";")[0]
        answer.read()
        connection.request("GET", "/api/events?run=mine", headers={"cookie": cookie})
        events = connection.getresponse()
        while not events.readline().startswith(b"event: news"):
            pass
        run.status.write_text(run.status.read_text().replace("stopped by you", "the last word"))
    assert b"the last word" in events.read()
    connection.close()
