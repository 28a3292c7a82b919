import errno
import io
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from deploy.reporting import logs
from deploy.reporting.logs import BURST_SECONDS, BYTES_PER_SECOND, LINES_PER_SECOND, PENDING_BYTES, Log, LogFile, Terminal, show
from tests.harness.waiting import PATIENCE_SECONDS, Clock, wait_until
from transport.run_dir import RunDir


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    return made


def printed(run: RunDir, lines: list[tuple[str, str]], *options: Any, stream: io.StringIO | None = None) -> str:
    """The output on the terminal of a log that gets these lines."""
    log = Log(run, 1_000_000, 1, Terminal(stream := stream or io.StringIO()), *options)
    for name, text in lines:
        log.bottleneck(text) if name == "bottleneck" else log.line(name, text)
    log.close()
    return stream.getvalue()


def merged(run: RunDir) -> list[str]:
    return [line[20:] for line in run.log("run").read_text("utf-8").splitlines()]


def test_lines_carry_the_name_on_the_terminal_and_the_time_in_the_files(run: RunDir) -> None:
    text = printed(run, [("actor-3", "412 steps/s"), ("supervisor", "starting"), ("bottleneck", "simulators · try more actors")])
    assert text == "actor-3  | 412 steps/s\nsupervisor | starting\nbottleneck: simulators · try more actors\n"
    assert merged(run) == text.splitlines()
    assert [line[20:] for line in run.log("actor-3").read_text().splitlines()] == ["412 steps/s"]


def test_a_quiet_terminal_shows_events_and_the_files_have_it_all(run: RunDir) -> None:
    assert printed(run, [("actor-3", "412 steps/s"), ("evaluator", "v42")], "events") == "eval     | v42\n"
    assert merged(run) == ["actor-3  | 412 steps/s", "eval     | v42"]


@pytest.mark.parametrize(("no_color", "coloured"), [(None, True), ("", True), ("1", False)])
def test_names_are_coloured_for_a_person_who_has_not_refused_it(
    no_color: str | None, coloured: bool, run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As https://no-color.org has it: NO_COLOR set to anything but the empty text."""
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    if no_color is not None:
        monkeypatch.setenv("NO_COLOR", no_color)
    assert printed(run, [("replay", "in")], stream=stream) == (
        "\x1b[35mreplay   | \x1b[0min\n" if coloured else "replay   | in\n"
    )
    assert "\x1b" not in run.log("run").read_text()


def test_a_log_is_set_aside_at_its_limit_and_as_many_older_are_kept_as_asked(tmp_path: Path) -> None:
    file = LogFile(tmp_path / "learner.log", 100, 2)
    for number in range(205):
        file.line(f"line {number:04d}")
    file.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["learner.log", "learner.log.1", "learner.log.2"]
    assert all(path.stat().st_size <= 110 for path in tmp_path.iterdir())


def test_a_disk_that_refuses_costs_lines_but_not_the_run(tmp_path: Path) -> None:
    LogFile(tmp_path / "run" / "logs" / "learner.log", 100, 1).line("lost")
    assert not (tmp_path / "run").exists(), "a run's folder that is gone is not made again"


def test_a_disk_that_cannot_be_looked_at_costs_lines_but_not_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stat(path: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    log = LogFile(tmp_path / "x.log", 10_000, 1)
    with monkeypatch.context() as closed:
        closed.setattr(os, "stat", stat)
        log.line("one")
    log.line("two")
    log.close()
    assert "two" in (tmp_path / "x.log").read_text()


def test_a_terminal_that_takes_nothing_never_blocks_the_writer_and_keeps_a_bounded_number_of_bytes() -> None:
    opened, held, waits = threading.Event(), threading.Event(), list[bool]()

    class Paused(io.StringIO):
        def write(self, text: str) -> int:
            held.set()
            waits.append(opened.wait(PATIENCE_SECONDS))
            return super().write(text)

    terminal = Terminal(stream := Paused())
    for number in range(1_000):
        terminal.line(f"{number:04d}" + "x" * 60_000)
    assert held.wait(PATIENCE_SECONDS), "its thread takes no line while they are counted"
    assert terminal._pending <= PENDING_BYTES and sum(map(len, terminal._lines)) == terminal._pending
    opened.set()
    assert wait_until(lambda: waits, what="the first line is written")[0], "a line waited for the terminal"
    wait_until(lambda: stream.getvalue().splitlines()[-1:] and stream.getvalue().splitlines()[-1].startswith("0999"))
    terminal.close()


@pytest.mark.skipif(os.name != "posix", reason="a pipe that blocks nobody")
def test_a_full_pipe_that_another_program_has_made_non_blocking_is_waited_for() -> None:
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    os.set_blocking(reading, False)
    arrived = bytearray()

    def read() -> bool:
        with suppress(BlockingIOError):
            arrived.extend(os.read(reading, 1 << 16))
        return terminal._closed or arrived.endswith(b"last\n")

    with os.fdopen(writing, "w") as stream:
        terminal = Terminal(stream)
        for number in range(10):
            terminal.line(f"{number}" * 50_000)
        terminal.line("last")
        wait_until(read, what="every line is read")
        terminal.close()
    os.close(reading)
    assert len(arrived) == 10 * 50_001 + 5


def test_a_process_that_prints_without_end_has_its_lines_left_out_and_counted(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(logs, "time", clock)
    log = Log(run, 1_000_000, 1, None)
    most = int(LINES_PER_SECOND * BURST_SECONDS)
    for number in range(most + 50):
        log.line("actor-0", str(number))
    log.line("actor-1", "another")
    log.line("supervisor", "mine")
    clock.now += 0.5
    for number in range(60):
        log.line("actor-0", str(number))
    log.close()
    lines = [line[20:] for line in run.log("actor-0").read_text("utf-8").splitlines()]
    expected = [*map(str, range(most)), "… 50 lines left out, because it prints too much", *map(str, range(50))]
    assert lines == [*expected, "… 10 lines left out, because it prints too much"]
    assert "another" in run.log("actor-1").read_text() and "mine" in run.log("run").read_text()


def test_few_but_endless_lines_are_left_out_too(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "time", Clock())
    log = Log(run, 100_000_000, 1, None)
    for _ in range(1_000):
        log.line("actor-0", "x" * 60_000)
    log.close()
    assert run.log("actor-0").stat().st_size <= BYTES_PER_SECOND * BURST_SECONDS + 1_000


def test_what_a_simulator_prints_cannot_steer_a_terminal(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "\x1b]0;title\x07\x1b[31mred\x1b[0m\x1b[2J bell \x07 back\x08 \u202eleft"
    shown = printed(run, [("actor-0", hostile), ("actor-0", "10%\r50%\r100%\r")])
    for text in (shown, run.log("run").read_text(), run.log("actor-0").read_text()):
        assert "red bell \\x07 back\\x08 \\u202eleft\n" in text and "100%\n" in text
        assert text.replace("\n", "").isprintable()
    run.log("actor-0").write_text("\x1b[2Jolder\n")  # by another version
    show(run.log("actor-0"), 5, False, lambda: True)
    assert capsys.readouterr().out == "older\n"


def test_a_last_line_that_was_not_written_whole_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.log"
    path.write_text("first\nsecond\nthi")
    show(path, 2, False, lambda: True)
    assert capsys.readouterr().out == "second\nthi\n"


def test_following_shows_what_is_added_also_after_rotation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Not capsys, which empties its stream when it is asked, and loses what a thread prints meanwhile.
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    path = tmp_path / "run.log"
    path.write_text("old\nfirst\n")
    over = threading.Event()
    follower = threading.Thread(target=show, args=(path, 1, True, over.is_set), daemon=True)
    follower.start()

    def shows(text: str) -> bool:
        return stream.getvalue() == text

    wait_until(lambda: shows("first\n"))
    with path.open("a") as file:
        file.write("second\nthi")
        file.flush()
        wait_until(lambda: shows("first\nsecond\n"))
        file.write("rd\n")
    wait_until(lambda: shows("first\nsecond\nthird\n"))
    os.replace(path, tmp_path / "run.log.1")
    path.write_text("fourth\n")
    wait_until(lambda: shows("first\nsecond\nthird\nfourth\n"))
    with path.open("a") as file:
        file.write("last\n")
    over.set()
    follower.join(60)
    assert shows("first\nsecond\nthird\nfourth\nlast\n")


def test_a_log_that_another_program_has_open_loses_no_line_and_is_rotated_later(
    run: RunDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rename(source: str, target: str) -> None:
        raise PermissionError(13, "it is being used by another process")

    log = LogFile(run.log("actor-0"), 30, 1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", rename)
        for number in range(3):
            log.line(f"line {number}, of twenty letters")
    log.line("the last")
    log.close()
    assert run.log("actor-0").with_name("actor-0.log.1").read_text().count("\n") == 3
    assert run.log("actor-0").read_text() == "the last\n"
