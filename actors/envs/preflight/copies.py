"""As many environments beside each other as an actor makes: some have a fixed port or a window that two cannot share."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import gymnasium

from actors.envs.preflight.parent import ADVICE, BESIDE
from actors.errors import EnvError, in_one_line

SLOWER = 1.5  # times the time that the first took


class Copies:
    """The environments beside the first."""

    def __init__(self, make: Callable[[int], gymnasium.Env], count: int, enter: Callable[[str], None]) -> None:
        """`make` makes the one of a number, 1 to `count` - 1. `enter` says which phase begins."""
        self._make, self._count, self._enter = make, count, enter

    def try_all(self, first: gymnasium.Env, action: Callable[[Any], Any], seconds: float, until: float) -> str:
        """Makes, resets and steps them by action(observation), and then the first again; closes all but the first.

        `seconds`: what making one takes. None is begun that would not be ready at the monotonic time `until`. Gives a note where
        some were left out. Raises EnvError."""
        made: list[gymnasium.Env] = []
        number = 0
        try:
            for number in range(1, self._count):
                if time.monotonic() + SLOWER * seconds > until:
                    tried = f"{number} of the {self._count} environments of an actor were tried"
                    return f"{tried}: --env.preflight-seconds is too short for more"
                self._enter(f"environment {number + 1} of {self._count}{BESIDE}")
                made.append(self._make(number))
                _try(made[-1], number, action)
            if made:
                _try(first, 0, action)
        except Exception as error:  # an environment may raise anything
            failed = f"one of {number + 1} environments{BESIDE} failed, and alone it did not ({in_one_line(error)})"
            raise EnvError(f"{failed}: {ADVICE}") from error
        finally:
            for env in made:
                with suppress(Exception):
                    env.close()
        return ""


def _try(env: gymnasium.Env, seed: int, action: Callable[[Any], Any]) -> None:
    observation, _ = env.reset(seed=seed)
    env.step(action(observation))
