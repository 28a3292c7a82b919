"""headrace play as its own process, in a terminal, and its window where there is no display."""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actors.datasets.base import open_source
from actors.person.options import PersonOptions
from actors.person.play import main, run
from deploy.children import child_environment, python_command
from tests.actors.person.test_session import Corridor

PATIENCE_SECONDS = 120.0


def make() -> Corridor:
    return Corridor()


class Unseen(Corridor):
    render_mode = "human"


class Player:
    """A person at the terminal of a process."""

    def __init__(self, command: list[str], folder: Path) -> None:
        import pty

        self._ours, self.theirs = pty.openpty()
        environment = child_environment(TERM="xterm", PYTHONPATH=os.getcwd())
        environment = {name: value for name, value in environment.items() if name not in ("DISPLAY", "WAYLAND_DISPLAY")}
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), self.theirs)
        self.process = subprocess.Popen(command, env=environment, cwd=folder, start_new_session=True, **streams)  # type: ignore[call-overload]
        self.seen = ""

    def read(self) -> None:
        if select.select([self._ours], [], [], 0.05)[0]:
            with contextlib.suppress(OSError):
                self.seen += os.read(self._ours, 1 << 16).decode(errors="replace")

    def until(self, text: str) -> None:
        """Until the program shows this, after what was waited for before."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not (found := re.search(text, self.seen)):
            assert time.monotonic() < deadline, self.seen[-2000:]
            assert self.process.poll() is None or select.select([self._ours], [], [], 0)[0], self.seen[-2000:]
            self.read()
        self.seen = self.seen[found.end() :]

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def end(self) -> int:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and time.monotonic() < deadline:
            self.read()  # a full terminal would block it
        for _ in range(3):
            self.read()
        return self.process.wait(0)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self._ours), os.close(self.theirs)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    if os.name != "posix":
        pytest.skip("pseudo-terminals")
    yield tmp_path


@contextlib.contextmanager
def player(folder: Path, *command: str) -> Iterator[Player]:
    at = Player(list(command), folder)
    try:
        yield at
    finally:
        at.close()


def options(folder: Path, env: str = "make", **more: Any) -> str:
    chosen = PersonOptions(env={"id": f"{__name__}:{env}"}, out=str(folder / "p.npz"), fps=10.0, **more)
    return msgspec.json.encode(chosen).decode()


def test_a_killed_player_keeps_whole_episodes_and_a_signal_gives_the_terminal_back(folder: Path) -> None:
    import termios

    right = "\x1b[C"  # one step, because steps are long
    with player(folder, *python_command("actors.person.play", options(folder))) as person:
        before = termios.tcgetattr(person.theirs)
        person.until("press a key to begin")
        person.press("x")
        for step in range(4):
            person.until(f"step {step} ")
            person.press(right)
        person.until("episode 2 · press a key to begin")
        person.press("x")
        person.until("step 0 ")
        person.press(right)
        person.until("step 1 ")
        person.process.kill()
        assert person.end() == -signal.SIGKILL
    assert [(len(one.rewards), one.terminated) for one in open_source(str(folder / "p.npz")).episodes()] == [(4, True)]
    with player(folder, *python_command("actors.person.play", options(folder))) as person:
        person.until("episode 2 · press a key to begin")
        assert termios.tcgetattr(person.theirs) != before
        person.press("x")
        person.until("step 0 ")
        person.press(right)
        person.until("step 1 ")
        person.process.terminate()
        assert person.end() == 0
        assert termios.tcgetattr(person.theirs) == before
        assert "\x1b[?25h" in person.seen and "2 episodes, 1 of them new, 5 steps" in person.seen


def test_the_command_says_what_to_type_next_and_gives_back_the_terminal_of_a_player_that_was_killed(folder: Path) -> None:
    import termios

    play = (*python_command("deploy.cli.main"), "play", "CartPole-v1", "--fps", "60", "--episodes", "1", "--seed", "3")
    with player(folder, *play) as person:
        before = termios.tcgetattr(person.theirs)
        person.until("press a key to begin")
        person.press("x")
        while "the end" not in person.seen:
            assert person.process.poll() is None, person.seen[-2000:]
            person.press("\x1b[C")
            person.read()
        assert person.end() == 0
        (file,) = (folder / "play").glob("CartPole-v1-*.npz")
        assert f"headrace up --env CartPole-v1 --replay.demonstrations play/{file.name} --algo dqn" in person.seen
    with player(folder, *play) as person:
        person.until("press a key to begin")
        (child,) = Path(f"/proc/{person.process.pid}/task/{person.process.pid}/children").read_text().split()
        os.kill(int(child), signal.SIGKILL)
        assert person.end() == 1 and termios.tcgetattr(person.theirs) == before and "\x1b[?25h" in person.seen


def test_a_window_is_played_without_a_display(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    pygame = pytest.importorskip("pygame")
    out, pictures = io.StringIO(), 0

    def stopped() -> bool:
        """Is asked before each picture: presses and releases a key there."""
        nonlocal pictures
        pictures += 1
        key = pygame.K_ESCAPE if "episode 2" in out.getvalue() else pygame.K_RIGHT
        if pictures > 1:  # a window is there
            for kind in (pygame.KEYDOWN, pygame.KEYUP):
                pygame.event.post(pygame.event.Event(kind, key=key))
        return pictures > 2_000

    run(PersonOptions(env={"id": f"{__name__}:make"}, out=str(tmp_path / "p.npz"), fps=240.0), stopped, out)
    lines = out.getvalue().splitlines()
    assert lines[:2] == [f"episode {number}: return 1.00, 4 steps" for number in (1, 2)]
    assert [one.total for one in open_source(str(tmp_path / "p.npz")).episodes()] == [1.0, 1.0]


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ({"id": f"{__name__}:Unseen"}, "cannot be seen"),
        ({"id": f"{__name__}:nothing"}, "has no nothing"),
        ({"id": "remote"}, "programs that connect decide its steps"),
        ({"id": f"{__name__}:make"}, "neither a display"),
    ],
)
def test_what_cannot_be_played_is_one_line(
    section: dict[str, Any], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("actors.person.play.handle", lambda number, handler: None)
    if sys.platform.startswith("linux") or why != "neither a display":
        text = msgspec.json.encode(PersonOptions(env=section, out=str(tmp_path / "p.npz"))).decode()
        assert main([text]) == 2
        err = capsys.readouterr().err
        assert why in err and err.count("\n") == 1
