"""A window that shows an environment's pictures. The only file that imports pygame."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np

from actors.errors import EnvError
from learner.devices import installing

LEAST_SIDE = 480  # pixels of a window's shorter side: small pictures are enlarged by a whole factor
DISPLAYS = ("DISPLAY", "WAYLAND_DISPLAY", "SDL_VIDEODRIVER")


class WindowClosed(Exception):
    """The user has closed the window."""


def has_display() -> bool:
    return not sys.platform.startswith("linux") or any(os.environ.get(name) for name in DISPLAYS)


def check_display() -> None:
    """Raises EnvError where no window could be seen. Some libraries then open one that is nowhere."""
    if not has_display():
        raise EnvError("there is no display for a window: record with --video out.mp4, or use --headless")


class Window:
    """Shows frames [H, W, 3] uint8, at most `frames_per_second` of them."""

    def __init__(self, title: str, frames_per_second: float) -> None:
        """Raises EnvError without pygame or a display."""
        self._seconds, self._due = 1 / frames_per_second, time.monotonic()
        check_display()
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        try:
            import pygame
        except ImportError as error:
            raise EnvError(
                f"a window needs pygame-ce: {installing.headrace('window')}; or record with --video out.mp4"
            ) from error
        self._pygame: Any = pygame
        self._screen: Any = None
        try:
            pygame.display.init()
        except pygame.error as error:
            raise EnvError(f"no window can be opened ({error}): record with --video out.mp4, or use --headless") from error
        pygame.display.set_caption(title)

    def show(self, frame: np.ndarray) -> None:
        """Waits until it is due. Raises WindowClosed."""
        pygame = self._pygame
        if any(event.type == pygame.QUIT for event in pygame.event.get()):
            raise WindowClosed
        height, width = frame.shape[:2]
        factor = max(round(LEAST_SIDE / min(height, width)), 1)
        if self._screen is None:
            self._screen = pygame.display.set_mode((width * factor, height * factor))
        picture = pygame.image.frombuffer(np.ascontiguousarray(frame).tobytes(), (width, height), "RGB")
        self._screen.blit(pygame.transform.scale(picture, self._screen.get_size()), (0, 0))
        pygame.display.flip()
        self._due = max(self._due + self._seconds, time.monotonic())
        time.sleep(max(self._due - time.monotonic(), 0.0))

    def close(self) -> None:
        self._pygame.display.quit()
