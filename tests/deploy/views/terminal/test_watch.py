"""`headrace top` on a terminal: it changes with its size, and leaves it as it was."""

from __future__ import annotations

import io
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from deploy.children import child_environment
from deploy.recorded.status import empty
from deploy.views.terminal.screen import RunView
from deploy.views.terminal.watch import watch

SECONDS = 60.0
PROGRAM = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs have it ignored
from rich.console import Console
from deploy.recorded.status import empty
from deploy.views.terminal.screen import RunView
from deploy.views.terminal.watch import watch
status = empty("mine", "toy", "dqn") | {"state": "running"}
watch(lambda: RunView(status, [], [], 0.0), lambda: False, Console(highlight=False))
print("left")
"""
ENTERS, LEAVES, SHOWS_CURSOR, COLOUR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[?25h", b"\x1b[32m"


class Session:
    """A program on a terminal of its own."""

    def __init__(self, **variables: str) -> None:
        termios = pytest.importorskip("termios")
        self.ours, theirs = os.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self.ours)
        environment = {name: value for name, value in child_environment().items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", PROGRAM],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environment | {"TERM": "xterm", "PYTHONUTF8": "1"} | variables,
            start_new_session=True,
        )
        os.close(theirs)
        self.seen = b""

    def resize(self, rows: int, columns: int) -> None:
        import fcntl
        import struct
        import termios

        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def wait_for(self, wanted: bytes) -> None:
        """Reads until this has appeared."""
        until = time.monotonic() + SECONDS
        while wanted not in self.seen:
            assert time.monotonic() < until, self.seen
            if select.select([self.ours], [], [], 0.1)[0]:
                self.seen += os.read(self.ours, 65536)

    def ends(self) -> int:
        self.wait_for(b"left")
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self.ours)


@pytest.fixture
def session(request: pytest.FixtureRequest) -> Iterator[Session]:
    """One that shows the run; its parameters are variables of the environment."""
    found = Session(**getattr(request, "param", {}))
    try:
        found.wait_for(b"no trouble so far")
        yield found
    finally:
        found.close()


@pytest.mark.parametrize("leave", ["q", "ctrl-c", "sigterm"])
def test_it_can_be_left_and_the_terminal_is_as_before(leave: str, session: Session) -> None:
    import termios

    assert ENTERS in session.seen and COLOUR in session.seen and LEAVES not in session.seen
    if leave == "q":
        os.write(session.ours, b"xq")
    else:
        session.process.send_signal(signal.SIGINT if leave == "ctrl-c" else signal.SIGTERM)
    assert session.ends() == 0
    after = session.seen.rpartition(ENTERS)[2]
    assert LEAVES in after and SHOWS_CURSOR in after and b"Traceback" not in session.seen
    assert termios.tcgetattr(session.ours)[:4] == session.before[:4]


def test_it_follows_the_size_of_the_terminal(session: Session) -> None:
    session.seen = b""
    session.resize(12, 30)
    session.wait_for(b"  \xe2\x96\xbc ")  # the flow from top to bottom


@pytest.mark.parametrize(
    ("session", "lacks"), [({"NO_COLOR": "1"}, COLOUR), ({"TERM": "dumb"}, b"\x1b")], indirect=["session"], ids=["plain", "dumb"]
)
def test_without_colours_there_are_none_and_a_dumb_terminal_gets_lines_alone(session: Session, lacks: bytes) -> None:
    assert lacks not in session.seen
    session.process.send_signal(signal.SIGINT)
    session.ends()


@pytest.mark.parametrize(("encoding", "arrow"), [("utf-8", "──▶"), ("ascii", "-->")])
def test_a_pipe_gets_one_picture_in_its_own_letters(encoding: str, arrow: str, tmp_path: Path) -> None:
    with (tmp_path / "out").open("w", encoding=encoding) as file:
        status = empty("mine", "toy", "dqn") | {"state": "running"}
        watch(lambda: RunView(status, [], [], 0.0), lambda: False, Console(file=file, width=80))
    text = (tmp_path / "out").read_text(encoding=encoding)
    assert text.count("mine running") == 1 and arrow in text


def test_a_run_that_is_over_is_shown_once() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    watch(lambda: RunView(empty("mine", "toy", "dqn"), [], [], 0.0), lambda: True, console)
    assert console.file.getvalue().count("stopped") == 1  # type: ignore[attr-defined]
