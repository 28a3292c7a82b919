"""Plays an episode of the log again: resets an environment as then, steps it with the logged actions, and compares."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from actors.datasets.runs import LoggedEpisode
from actors.envs.foreign.in_turn import EnvsInTurn
from actors.episodes import succeeded
from actors.errors import in_one_line
from transport.experience import Column, Columns, ExperienceSpec, Start, bounded

ONE = np.zeros(1, np.int64)


class Departure(NamedTuple):
    """The first difference from the log. `step`: the number of actions before it; 0 if the reset differs."""

    step: int
    what: str

    def where(self, length: int) -> str:
        return f"step {self.step:,} of {length:,}" if self.step else "its start"


class PlaybackEnv:
    """An environment that plays episodes of the log again."""

    def __init__(self, env: gymnasium.Env, spec: ExperienceSpec) -> None:
        self._spec, self._options = spec, dict[str, Any]()
        self._env = EnvsInTurn([env], spec.fields, lambda: self._options or None)
        self.success: bool | None = None  # as the environment reported it at the last step

    def skip(self, episode: LoggedEpisode) -> None:
        """Plays an episode without comparing, so that the random generator advances as it did."""
        try:
            self._reset(episode.start)
            for action in bounded(self._spec, episode.rows["action"]):
                self._env.step(action[None])
        except Exception:  # it may have failed in the run, too; the next reset shows whether that matters
            return

    def play(self, episode: LoggedEpisode) -> Iterator[Departure | None]:
        """Yields before each step and after the last one: the departure from the log, None while there is none. After a departure
        the environment is not stepped any more."""
        rows, length, self.success = episode.rows, len(episode.rows["reward"]), None
        departure = self._begin(episode)
        for step, action in enumerate(bounded(self._spec, rows["action"]), 1):
            yield departure
            if departure is None:
                what = self._step(episode, step, action, last=step == length)
                departure = Departure(step, what) if what else None
        yield departure

    def close(self) -> None:
        self._env.close()

    def _reset(self, start: Start | None) -> Columns:
        self._options = {"level": start.level} if start and start.level >= 0 else {}
        return self._env.reset(ONE, [start.seed if start else None])

    def _begin(self, episode: LoggedEpisode) -> Departure | None:
        try:
            observation = self._reset(episode.start)
        except Exception as error:  # an environment may raise anything
            return Departure(0, f"the environment's reset raised {in_one_line(error)}")
        what = self._difference(observation, episode.rows, 0)
        return Departure(0, what) if what else None

    def _step(self, episode: LoggedEpisode, step: int, action: np.ndarray, last: bool) -> str:
        """Takes a step, and returns what differs from the log; empty if nothing does."""
        rows, ends = episode.rows, episode.terminated or episode.truncated
        reward = rows["reward"][step - 1]
        # If an environment fails, its actor ends the episode before that step.
        failed = last and episode.truncated and reward == 0
        try:
            found = self._env.step(action[None])
        except Exception as error:
            return "" if failed else f"the environment raised {in_one_line(error)}"
        if failed and not self._finite(found.observation, found.reward):
            return ""
        if found.reward[0] != reward:
            return f"the reward is {found.reward[0]:.9g}, in the log {reward:.9g}"
        terminated, truncated = bool(found.terminated[0]), bool(found.truncated[0])
        if terminated != (last and episode.terminated):
            return "it terminates, in the log it does not" if terminated else "it does not terminate, in the log it does"
        if truncated and not (last and episode.truncated):
            return "it is truncated, in the log it goes on"
        if last and episode.truncated and not truncated and episode.follows:
            return "it goes on, in the log it is truncated"
        if last and ends:
            self.success = succeeded(found.success[0])
        if last and episode.terminated:
            return ""  # the log does not keep the observation after that
        return self._difference(found.observation, episode.last if last else rows, 0 if last else step)

    def _finite(self, observation: Columns, reward: np.ndarray) -> bool:
        return bool(np.isfinite(reward).all()) and all(np.isfinite(values).all() for values in observation.values())

    def _difference(self, observation: Columns, rows: Columns, row: int) -> str:
        """Compares an observation [1, …] with a row of the log, both in the form that replay stores."""
        for field in self._spec.fields:
            found, wanted = field.encode(observation[field.name])[0], rows[field.name][row]
            if not np.array_equal(found, wanted):
                return _differs(field, found, wanted)
        return ""


def _differs(field: Column, found: np.ndarray, wanted: np.ndarray) -> str:
    places = np.argwhere(found != wanted)
    where: Sequence[int] = places[0].tolist()
    now, then = (field.decode(values)[tuple(where)] for values in (found, wanted))
    entry = f"{field.name}{where}" if where else field.name
    others = f", and {len(places) - 1:,} more of {found.size:,} values differ" if len(places) > 1 else ""
    return f"{entry} is {now:.9g}, in the log {then:.9g}{others}"
