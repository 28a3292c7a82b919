"""A person takes over from the policy of a demo by the key Tab, and hands back by the same key."""

from __future__ import annotations

from typing import TextIO

import numpy as np

from actors.envs.foreign.keys import Keys
from actors.errors import EnvError
from actors.evaluation.video.overlay import ExplainedPlayer, Overlay
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.screen import open_screen
from learner.algorithms.base import ActingPolicy
from transport.experience import ExperienceSpec

KEY = "tab"


class SteeringScreen:
    """Shows pictures to a person, reads their keys, and gives the actions while they steer."""

    def __init__(self, title: str, rate: float, keys: Keys, overlay: Overlay | None, out: TextIO) -> None:
        """`rate`: steps per second. Raises EnvError where no keys can be read."""
        if KEY in keys.used:
            raise EnvError(f"nobody can take over: the environment needs the key {KEY} itself")
        self._overlay, self._title = overlay, overlay.title if overlay else ""
        self._pressed = Pressed(keys, rate)
        self._screen = open_screen(title, rate, out, self._pressed)
        self.steers = self._has_chosen = False
        self._frame = np.empty((0, 0, 3), np.uint8)

    def show(self, frame: np.ndarray) -> None:
        """Shows a picture, once it is due, and reads the keys. Raises WindowClosed."""
        self._frame = frame
        self._screen.show(frame, [self._line])
        if self._pressed.taps().count(KEY) % 2:
            self.steers = not self.steers
            self._pressed.take()  # keys that were pressed before do not count
            if self._overlay is not None:
                self._overlay.title = self._line if self.steers else self._title

    def action(self) -> np.ndarray | None:
        """The person's action, after a key if each action needs one; None while the policy plays."""
        while self.steers:
            if (action := self._pressed.action()) is not None:
                self._has_chosen = True
                return np.asarray(action)
            self.show(self._frame)
        return None

    def has_steered(self) -> bool:
        """Whether the person has chosen an action since the last call."""
        chosen, self._has_chosen = self._has_chosen, False
        return chosen

    def close(self) -> None:
        self._screen.close()

    @property
    def _line(self) -> str:
        return "you steer: Tab hands back" if self.steers else "Tab takes over"


class SharedPlayer(ExplainedPlayer):
    """The policy acts unless the person steers. Its memory goes on meanwhile."""

    def __init__(self, spec: ExperienceSpec, policy: ActingPolicy, overlay: Overlay | None, screen: SteeringScreen) -> None:
        super().__init__(spec, policy, overlay)
        self._screen = screen

    def actions(self) -> np.ndarray:
        actions, chosen = super().actions(), self._screen.action()
        return actions if chosen is None else chosen[None]
