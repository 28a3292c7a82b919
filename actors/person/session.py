"""A person plays episodes, and each one is recorded."""

from __future__ import annotations

import math
from collections.abc import Callable

import gymnasium

from actors.datasets.base import DatasetError
from actors.envs.foreign.actions import to_env_action
from actors.evaluation.video.film import END_SECONDS, picture_of
from actors.evaluation.video.pressed import Pressed
from actors.evaluation.video.screen import Screen
from actors.evaluation.video.window import WindowClosed
from actors.person.recording import Recording, Step
from transport.text import amount

LEAST_RATE = 30.0  # pictures per second: keys are read once per picture
END, DISCARD, PAUSE = "end", "throw this episode away", "pause"
COMMANDS = {"r": DISCARD, "backspace": DISCARD, "p": PAUSE, "tab": PAUSE, "escape": END}


def pictures_per_step(rate: float) -> int:
    return max(math.ceil(LEAST_RATE / rate), 1)


class Discarded(Exception):
    """The person has discarded an episode."""


class PlaySession:
    """Reads the keys, steps the environment and records the episodes. The screen prints a line about each episode."""

    def __init__(
        self, env: gymnasium.Env, screen: Screen, pressed: Pressed, recording: Recording, rate: float, stopped: Callable[[], bool]
    ) -> None:
        """`rate`: steps per second; the screen shows `pictures_per_step` times as many pictures. Once `stopped` returns True, the
        session ends."""
        self._env, self._screen, self._pressed, self._recording = env, screen, pressed, recording
        self._stopped, self._pictures = stopped, pictures_per_step(rate)
        self._end_pictures = round(END_SECONDS * rate * self._pictures)
        self._commands = {key: command for key, command in COMMANDS.items() if key not in pressed.keys.used}
        self._help = [*pressed.keys.lines(), *_command_lines(self._commands)]
        self._steps: list[Step] = []  # of the current episode
        self._total = 0.0  # reward of the current episode
        self._can_discard_last = False  # until the next episode begins

    def play(self, episodes: int, seed: int) -> None:
        """`episodes`: the number to record; 0 means until the person ends the session. Raises EnvError, OSError, and what the
        environment raises."""
        wanted = len(self._recording.episodes) + episodes
        next_seed: int | None = seed
        try:
            while not episodes or len(self._recording.episodes) < wanted:
                try:
                    self._begin(next_seed)
                    next_seed = None
                    self._wait("press a key to begin")
                    self._record(self._episode())
                    for _ in range(self._end_pictures):
                        self._show(f"the end: return {amount(self._total)}")
                except Discarded:
                    self._discard()
        except WindowClosed:
            if self._steps:
                self._record(terminated=False, ended=False)

    def _begin(self, seed: int | None) -> None:
        self._number = len(self._recording.episodes) + 1
        observation, _ = self._env.reset(seed=seed)
        self._first, self._steps, self._total = self._recording.parts(observation), [], 0.0
        self._frame = picture_of(self._env)

    def _episode(self) -> bool:
        """Steps until the episode ends. Returns whether it terminated."""
        pictures, self._can_discard_last = 0, False
        while True:
            if PAUSE in self._show(f"step {len(self._steps):,}", f"return {amount(self._total)}"):
                self._wait("paused: press a key")
                continue
            pictures += 1
            if pictures < self._pictures:
                continue
            if (action := self._pressed.action()) is None:
                continue
            pictures = 0
            observation, reward, terminated, truncated, _ = self._env.step(to_env_action(self._env.action_space, action))
            self._steps.append(Step(action, float(reward), self._recording.parts(observation)))
            self._total += float(reward)
            self._frame = picture_of(self._env)
            if terminated or truncated:
                return bool(terminated)

    def _record(self, terminated: bool, ended: bool = True) -> None:
        """Records the current episode."""
        steps, self._steps = self._steps, []
        text = f"episode {len(self._recording.episodes) + 1}: return {amount(self._total)}, {len(steps):,} steps"
        try:
            self._recording.add(self._first, steps, terminated)
        except DatasetError as error:
            self._screen.say(f"{text}; it is not recorded, because {error}")
            return
        self._can_discard_last = True
        self._screen.say(text if ended else f"{text}; it had not ended, and is kept as truncated")

    def _discard(self) -> None:
        number = len(self._recording.episodes)
        if self._steps:
            self._screen.say(f"episode {number + 1}: thrown away after {len(self._steps):,} steps")
        else:
            self._recording.remove_last()
            self._screen.say(f"episode {number}: thrown away")
        self._steps, self._can_discard_last = [], False

    def _wait(self, text: str) -> None:
        """Waits until a key is pressed."""
        while not self._show(text):
            pass
        self._pressed.take()  # this key is an action only if it stays held

    def _show(self, *status: str) -> list[str]:
        """Shows the picture, once it is due. Returns the commands and the names of the keys that have been pressed. Raises
        WindowClosed, Discarded."""
        if self._stopped():
            raise WindowClosed
        self._screen.show(self._frame, [f"episode {self._number}", *status], self._help)
        pressed = [self._commands.get(key, key) for key in self._pressed.taps()]
        if END in pressed:
            raise WindowClosed
        if DISCARD in pressed and (self._steps or self._can_discard_last):
            raise Discarded
        return pressed


def _command_lines(commands: dict[str, str]) -> list[str]:
    """A line for each command, with its first key."""
    first = {command: key for key, command in reversed(commands.items())}
    return [f"{key}  {command}" for command, key in first.items()][::-1]
