"""A person takes over from a policy that plays an environment, and hands back, by the key Tab."""

from __future__ import annotations

import sys
from typing import TextIO

import numpy as np

from actors.envs.foreign.keys import Keys
from actors.errors import EnvError
from actors.evaluation.video.overlay import ExplainedPlayer, Overlay
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.screen import in_terminal
from actors.evaluation.video.terminal import Terminal
from actors.evaluation.video.typed import TypedKeys
from actors.evaluation.video.window import Window
from learner.algorithms.base import ActingPolicy
from transport.experience import ExperienceSpec

KEY = "tab"


class Seat:
    """A person before the screen of a demo."""

    def __init__(self, title: str, rate: float, keys: Keys, overlay: Overlay | None, out: TextIO) -> None:
        """`rate`: steps per second. Raises EnvError where no keys can be read."""
        if KEY in keys.used:
            raise EnvError(f"nobody can take over: the environment needs the key {KEY} itself")
        self._keys, self._overlay, self._title = keys, overlay, overlay.title if overlay else ""
        self._pressed = Pressed(rate)
        self._typed: TypedKeys | None = None
        self._terminal: Terminal | None = None
        self._window: Window | None = None
        if in_terminal(out):
            if not sys.__stdin__ or not sys.__stdin__.isatty():
                raise EnvError("nobody can take over: there is neither a display nor a terminal to type in")
            self._typed, self._terminal = TypedKeys(self._pressed, 0), Terminal(out, rate)
        else:
            self._window = Window(title, rate, pressed=self._pressed)
        self.steers = self._took_part = False
        self._frame = np.empty((0, 0, 3), np.uint8)

    def show(self, frame: np.ndarray) -> None:
        """Shows a picture, once it is due, and looks at the keys. Raises WindowClosed."""
        self._frame = frame
        if self._typed is not None:
            self._typed.read()
        if self._terminal is not None:
            self._terminal.show(frame, [self._line])
        if self._window is not None:
            self._window.show(frame)
        if self._pressed.taps().count(KEY) % 2:
            self.steers = not self.steers
            self._pressed.take()  # nothing of what was pressed before
            if self._overlay is not None:
                self._overlay.title = self._line if self.steers else self._title

    def action(self) -> np.ndarray | None:
        """What the person does now, waiting for a key where each action needs one; None where the policy plays."""
        while self.steers:
            held = self._pressed.take()
            if not self._keys.needs_key(held):
                self._took_part = True
                return np.asarray(self._keys.action(held))
            self.show(self._frame)
        return None

    def takes_leave(self) -> bool:
        """Whether the person has done anything since the last call."""
        took_part, self._took_part = self._took_part, False
        return took_part

    def close(self) -> None:
        for opened in (self._typed, self._terminal, self._window):
            if opened is not None:
                opened.close()

    @property
    def _line(self) -> str:
        return "you steer: Tab hands back" if self.steers else "Tab takes over"


class SharedPlayer(ExplainedPlayer):
    """The policy plays, except while the person does; its memory goes on."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, overlay: Overlay | None, seat: Seat) -> None:
        super().__init__(spec, policy, overlay)
        self._seat = seat

    def actions(self) -> np.ndarray:
        actions, chosen = super().actions(), self._seat.action()
        return actions if chosen is None else chosen[None]
