"""A window that shows an environment's pictures, and the keys and gamepads that it hears. The only file that imports pygame."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from actors.errors import EnvError
from actors.evaluation.video.pressed import Pressed
from learner.devices import installing

LEAST_SIDE = 480  # pixels of a window's shorter side: small pictures are enlarged by a whole factor
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")
NOWHERE = ("offscreen", "dummy")  # what SDL takes where no display answers
INSTEAD = "record with --video out.mp4, or use --headless"
KEY_NAMES = {"return": "enter", "left shift": "shift", "right shift": "shift", "left ctrl": "ctrl", "right ctrl": "ctrl"}
STICKS = (("left", "right"), ("up", "down"), ("", ""), ("a", "d"), ("w", "s"))  # the keys of an axis to its ends; 2 is a trigger
STILL = 0.2  # of an axis: a stick that nobody touches is seldom at 0


class WindowClosed(Exception):
    """The user has closed the window."""


def has_display() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in DISPLAYS)


def has_pygame() -> bool:
    return find_spec("pygame") is not None


def missing_pygame() -> str:
    return f"a window needs pygame-ce: {installing.headrace('window')}"


def check_display(instead: str = INSTEAD) -> None:
    """Raises EnvError where no window could be seen. Some libraries then open one that is nowhere."""
    if not has_display():
        raise EnvError(f"there is no display for a window: {instead}")


class Window:
    """Shows frames [H, W, 3] uint8, at most `frames_per_second` of them."""

    def __init__(
        self,
        title: str,
        frames_per_second: float,
        instead: str = INSTEAD,
        pressed: Pressed | None = None,
        buttons: Sequence[str] = (),
    ) -> None:
        """`instead`: what a message tells a user to do where there is no window. `pressed` gets the keys of the keyboard and of
        all gamepads, whose sticks are the arrow keys and whose buttons are the keys `buttons`. Raises EnvError without pygame or
        a display."""
        self._seconds, self._due = 1 / frames_per_second, time.monotonic()
        check_display(instead)
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            raise EnvError(f"{missing_pygame()}; or {instead}") from error
        self._pygame: Any = pygame
        self._screen: Any = None
        self._pressed, self._buttons, self._gamepads = pressed, buttons, dict[int, Any]()
        try:
            pygame.display.init()
            if pressed is not None:
                pygame.joystick.init()
        except pygame.error as error:
            raise EnvError(f"no window can be opened ({error}): {instead}") from error
        if pygame.display.get_driver() in NOWHERE and not os.environ.get("SDL_VIDEODRIVER"):
            raise EnvError(f"no window can be opened (the display that is named does not answer): {instead}")
        self.set_title(title)

    def set_title(self, title: str) -> None:
        self._pygame.display.set_caption(title)

    def show(self, frame: np.ndarray) -> None:
        """Waits until it is due. Raises WindowClosed."""
        pygame = self._pygame
        for event in pygame.event.get():
            if event.type == pygame.QUIT:
                raise WindowClosed
            if self._pressed is not None:
                self._hear(event, self._pressed)
        height, width = frame.shape[:2]
        factor = max(round(LEAST_SIDE / min(height, width)), 1)
        if self._screen is None:
            self._screen = pygame.display.set_mode((width * factor, height * factor))
        picture = pygame.image.frombuffer(np.ascontiguousarray(frame).tobytes(), (width, height), "RGB")
        self._screen.blit(pygame.transform.scale(picture, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        self._due = max(self._due + self._seconds, time.monotonic())
        time.sleep(max(self._due - time.monotonic(), 0.0))

    def _hear(self, event: Any, pressed: Pressed) -> None:
        pygame = self._pygame
        if event.type in (pygame.KEYDOWN, pygame.KEYUP):
            name = pygame.key.name(event.key)
            (pressed.down if event.type == pygame.KEYDOWN else pressed.up)(KEY_NAMES.get(name, name))
        elif event.type in (pygame.JOYBUTTONDOWN, pygame.JOYBUTTONUP) and event.button < len(self._buttons):
            (pressed.down if event.type == pygame.JOYBUTTONDOWN else pressed.up)(self._buttons[event.button])
        elif event.type == pygame.JOYAXISMOTION and event.axis < len(STICKS):
            _turn(pressed, STICKS[event.axis], event.value)
        elif event.type == pygame.JOYHATMOTION:
            across, up = event.value
            _turn(pressed, STICKS[0], across)
            _turn(pressed, STICKS[1], -up)
        elif event.type == pygame.JOYDEVICEADDED:  # also at the start, for each that is there
            self._gamepads[event.device_index] = pygame.joystick.Joystick(event.device_index)
        elif event.type in (pygame.WINDOWFOCUSLOST, pygame.JOYDEVICEREMOVED):  # what is released now is not heard
            pressed.release()

    def close(self) -> None:
        self._pygame.joystick.quit()
        self._pygame.display.quit()


def _turn(pressed: Pressed, ends: tuple[str, str], value: float) -> None:
    """An axis from -1 to 1 is one of two keys, pressed as far."""
    for key, strength in zip(ends, (-value, value), strict=True):
        if key and strength > STILL:
            pressed.down(key, min(strength, 1.0))
        elif key:
            pressed.up(key)
