"""Which keys count for a step, from a keyboard that tells of releases, a terminal that does not, and a window."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.envs.foreign.keys import Keys
from actors.errors import EnvError
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.typed import HELD_SECONDS, TypedKeys
from actors.evaluation.video.window import Window, WindowClosed

KEYS = Keys(spaces.Discrete(2))
PICTURE = np.zeros((8, 8, 3), np.uint8)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_key_counts_while_it_is_held_and_once_if_it_was_released_before_the_step() -> None:
    pressed = Pressed(KEYS)
    pressed.down("left")
    pressed.down("a")
    pressed.up("a")
    assert pressed.take() == {"left": 1.0, "a": 1.0} and pressed.take() == {"left": 1.0}
    pressed.up("left")
    assert pressed.take() == {} and pressed.taps() == ["left", "a"] and pressed.taps() == []


def test_in_long_steps_a_short_press_is_one_step_and_a_long_one_repeats() -> None:
    clock = Clock()
    pressed = Pressed(KEYS, steps_per_second=10.0, clock=clock)
    counted = []
    for now, held in [(0.0, True), (0.1, True), (0.2, True), (0.3, True), (0.4, False)]:
        clock.now = now
        (pressed.down if held else pressed.up)("left")
        counted.append("left" in pressed.take())
    assert counted == [True, False, True, True, False]


def test_without_a_word_of_its_release_a_key_is_held_as_long_as_it_repeats() -> None:
    clock = Clock()
    pressed = Pressed(KEYS, clock=clock)
    counted = []
    for now, typed in [(0.0, True), (0.1, True), (0.2, False), (0.3, False)]:
        clock.now = now
        if typed:
            pressed.down("left", seconds=HELD_SECONDS)
        counted.append("left" in pressed.take())
    assert counted == [True, True, True, False] and pressed.taps() == ["left"]


@pytest.fixture
def terminal() -> Iterator[tuple[int, int]]:
    """Both ends: of the person, and of the program."""
    pty = pytest.importorskip("pty", reason="pseudo-terminals")
    ours, theirs = pty.openpty()
    yield ours, theirs
    for end in (ours, theirs):
        try:
            os.close(end)
        except OSError:
            pass


def test_a_terminals_characters_are_keys_and_it_is_as_before_afterwards(terminal: tuple[int, int]) -> None:
    import termios

    ours, theirs = terminal
    before = termios.tcgetattr(theirs)
    pressed = Pressed(KEYS)
    keys = TypedKeys(pressed, theirs)
    assert termios.tcgetattr(theirs) != before
    for typed, meant in [
        (b"\x1b[A\x1bOD\x1b[1;2C", ["up", "left", "right"]),  # of one kind of terminal, of another, with shift
        (b"A \r7\x7f\xc3\xa4", ["a", "space", "enter", "7", "backspace"]),
        (b"\x1b", []),  # the beginning of a sequence, or Esc
        (b"[B", ["down"]),
        (b"\x1b", []),
        (b"", ["escape"]),
        (b"\x1b[5~", []),
    ]:
        os.write(ours, typed)
        keys.read()
        assert pressed.taps() == meant, typed
        pressed.release()
    keys.close()
    assert termios.tcgetattr(theirs) == before


def test_a_terminal_that_is_gone_is_a_closed_window_and_a_pipe_is_refused(terminal: tuple[int, int]) -> None:
    ours, theirs = terminal
    keys = TypedKeys(Pressed(KEYS), theirs)
    os.close(ours)
    with pytest.raises(WindowClosed):
        keys.read()
    keys.close()
    reading, writing = os.pipe()
    with pytest.raises(EnvError):
        TypedKeys(Pressed(KEYS), reading)
    os.close(reading), os.close(writing)


@pytest.fixture
def pygame(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("SDL_VIDEODRIVER", "dummy")
    monkeypatch.setenv("PYGAME_HIDE_SUPPORT_PROMPT", "1")
    return pytest.importorskip("pygame")


def test_a_window_hears_keyboard_and_gamepads(pygame: Any) -> None:
    pressed = Pressed(KEYS)
    window = Window("test", 1e3, pressed=pressed, buttons=("a", "b"))
    window.show(PICTURE)  # it gets the focus
    pressed.release(), pressed.taps()

    def after(*events: Any) -> dict[str, float]:
        for event in events:
            pygame.event.post(event)
        window.show(PICTURE)
        return pressed.take()

    def event(kind: str, **fields: Any) -> Any:
        return pygame.event.Event(getattr(pygame, kind), fields)

    down = [event("KEYDOWN", key=key) for key in (pygame.K_LEFT, pygame.K_RETURN, pygame.K_LSHIFT, pygame.K_z)]
    assert after(*down) == {"left": 1.0, "enter": 1.0, "shift": 1.0, "z": 1.0}
    assert after(event("KEYUP", key=pygame.K_LEFT), event("WINDOWFOCUSLOST")) == {}
    for across, along, keys in [(0.5, -1.0, {"right": 0.5, "up": 1.0}), (0.1, 0.0, {})]:
        assert after(event("JOYAXISMOTION", axis=0, value=across), event("JOYAXISMOTION", axis=1, value=along)) == keys
    assert after(event("JOYHATMOTION", value=(-1, 1)), event("JOYBUTTONDOWN", button=1)) == {"left": 1.0, "up": 1.0, "b": 1.0}
    assert after(event("JOYHATMOTION", value=(0, 0)), event("JOYBUTTONUP", button=1), event("JOYBUTTONDOWN", button=9)) == {}
    with pytest.raises(WindowClosed):
        after(event("QUIT"))
    window.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere there is always a display")
def test_a_window_without_a_display_is_refused_with_what_to_do_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(EnvError, match="play in a terminal"):
        Window("test", 30, "play in a terminal")
