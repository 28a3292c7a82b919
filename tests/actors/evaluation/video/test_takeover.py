"""A person before the screen of a demo takes over by Tab, and what they press is what is stepped."""

from __future__ import annotations

import io
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from actors.envs.foreign.keys import Keys
from actors.errors import EnvError
from actors.evaluation.video import takeover
from actors.evaluation.video.overlay import Overlay
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.takeover import SharedPlayer, SteeringScreen
from actors.evaluation.video.window import WindowClosed
from learner.algorithms.base import ActionBatch
from transport.experience import Categorical, ExperienceSpec, observed

SPEC = ExperienceSpec((observed("x", (), "<f4"),), Categorical(2), 8)
FRAME = np.zeros((4, 4, 3), np.uint8)


class Screen:
    """A screen whose keys the test presses: those of `script`, one picture after the other."""

    def __init__(self, pressed: Pressed) -> None:
        self.pressed, self.script, self.status = pressed, list[tuple[str, ...]](), tuple[str, ...]()

    def show(self, frame: np.ndarray, status: Sequence[str]) -> None:
        self.status = tuple(status)
        if not self.script:
            raise WindowClosed
        for key in self.script.pop(0):
            self.pressed.down(key)
            self.pressed.up(key)

    def close(self) -> None: ...


class Policy:
    state: dict[str, tuple[int, ...]] = {}

    def act(self, observation: Any, state: Any, mode: str) -> ActionBatch:
        return ActionBatch(np.zeros(1, np.int64), {}, {})


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> SteeringScreen:
    monkeypatch.setattr(takeover, "open_screen", lambda title, rate, out, pressed: Screen(pressed))
    return SteeringScreen("demo", 10.0, Keys(spaces.Discrete(2), ["left", "right"]), Overlay("policy v1"), io.StringIO())


def played(screen: SteeringScreen, *script: tuple[str, ...]) -> list[int]:
    """The action of each step, where a picture is shown after each, and more while a key is waited for."""
    policy: Any = Policy()
    player = SharedPlayer(SPEC, policy, None, screen)
    player.reset({"x": np.zeros(1, np.float32)})
    shown: Any = screen._screen
    shown.script = list(script)
    actions = []
    with suppress(WindowClosed):
        while True:
            screen.show(FRAME)
            actions.append(int(player.actions()[0]))
    return actions


def test_tab_takes_over_and_hands_back_and_each_action_waits_for_its_key(screen: SteeringScreen) -> None:
    right = ("right",)
    assert played(screen, (), right, ("tab",), right, (), (), right, ("left",), ("tab",), right, ()) == [0, 0, 1, 1, 0, 0, 0, 0]
    assert screen.has_steered() and not screen.has_steered() and not screen.steers


def test_what_was_pressed_before_is_no_action_and_twice_tab_is_nothing(screen: SteeringScreen) -> None:
    assert played(screen, ("right", "tab"), (), ("left",), ("tab", "tab"), ("left",), ())[:1] == [0]
    assert screen.steers and screen._overlay is not None and "Tab hands back" in screen._overlay.title


def test_an_environment_that_needs_tab_cannot_be_taken_over(monkeypatch: pytest.MonkeyPatch) -> None:
    keys = Keys(spaces.Discrete(2), ["left", "right"])
    monkeypatch.setattr(takeover, "KEY", "left")
    with pytest.raises(EnvError, match="needs the key left"):
        SteeringScreen("demo", 10.0, keys, None, io.StringIO())
