"""Gymnasium environments of one process, stepped one after the other; one that fails is replaced."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from actors.envs.base import Simulators, SimulatorStep
from actors.envs.foreign.actions import to_env_action
from actors.envs.spaces import check_reward, check_step, read_flag, read_observation
from actors.errors import EnvError, in_one_line
from transport.experience import Column
from transport.text import plain

MOST_GROUP = 64  # characters of a group's name
REPORTED = 3  # failures with a line each; after them one of ten, of a hundred …


class Renewal(NamedTuple):
    """Makes environments anew that have failed."""

    makers: Sequence[Callable[[], gymnasium.Env]]
    raised: Callable[[str], None]  # is called with a line that says how it failed


def _close(env: gymnasium.Env) -> None:
    """Closes it. What it raises is printed: others are to be closed as well, and what was played is of use."""
    try:
        env.close()
    except Exception as error:  # an environment may raise anything
        print(f"an environment was not closed: {in_one_line(error)}", file=sys.stderr, flush=True)


def make_further(first: gymnasium.Env, makers: Sequence[Callable[[], gymnasium.Env]]) -> list[gymnasium.Env]:
    """The first environment and those that are made beside it. Closes all of them where one cannot be made, and raises that."""
    with ExitStack() as unless_made:
        envs = [first]
        unless_made.callback(_close, first)
        for make in makers:
            envs.append(make())
            unless_made.callback(_close, envs[-1])
        unless_made.pop_all()
    return envs


class EnvsInTurn(Simulators):
    """Gymnasium environments, stepped one after the other. Their info may have is_success or success, and score, group and level
    as in SimulatorStep."""

    def __init__(
        self,
        envs: list[gymnasium.Env],
        fields: Sequence[Column],
        reset_options: Callable[[], dict[str, Any] | None] = lambda: None,
        beat: Callable[[], None] = lambda: None,
        info_keywords: Sequence[str] = (),
        renewal: Renewal | None = None,
    ) -> None:
        """`fields`: of the spec. `beat` is called after each environment's step or reset. `info_keywords`: the
        keys of info whose values a SimulatorStep has."""
        self._envs, self._fields, self._reset_options, self._beat = envs, fields, reset_options, beat
        self._info_keywords, self._renewal = info_keywords, renewal
        self._renewed = set[int]()  # environments that have made no step since they were made anew
        self._renewals = 0
        self._observation_space, self._action_space = envs[0].observation_space, envs[0].action_space
        # The dtype and shape of observations that are stored without conversion; None: all are converted.
        self._at_rest: tuple[np.dtype, tuple[int, ...]] | None = None
        space, rest = envs[0].observation_space, (np.dtype(fields[0].dtype), fields[0].shape)
        if isinstance(space, gymnasium.spaces.Box) and (space.dtype, space.shape) == rest:
            self._at_rest = rest

    def reset(self, where: np.ndarray, seeds: Sequence[int | None]) -> dict[str, np.ndarray]:
        """Starts an episode in environments `where` [M]. Gives [M, *shape] by name. Raises EnvError, as `step` does."""
        rows = self._empty(len(where))
        for row, (k, seed) in enumerate(zip(where, seeds, strict=True)):
            options = self._reset_options()
            arguments: dict[str, Any] = {"seed": seed, **({} if options is None else {"options": options})}
            try:
                self._reset(k, arguments, rows, row)
            except Exception as error:
                self._renew(int(k), "reset", error)
                self._reset(k, arguments, rows, row)
            self._beat()
        return rows

    def _reset(self, k: int, arguments: dict[str, Any], rows: dict[str, np.ndarray], row: int) -> None:
        observation, _ = self._envs[k].reset(**arguments)
        self._write("reset", rows, row, observation)
        for field in self._fields:
            if not np.isfinite(rows[field.name][row]).all():
                raise EnvError("reset gave an observation that is not finite")

    def step(self, actions: np.ndarray) -> SimulatorStep:
        """Steps all environments, one after the other. Raises what an environment raises that may not be made anew."""
        count = len(self._envs)
        rows, reward = self._empty(count), np.empty(count, np.float32)
        terminated, truncated = np.zeros(count, bool), np.zeros(count, bool)
        score, success, group, level = [], [], [], []
        named: dict[str, list[Any]] = {key: [] for key in self._info_keywords}
        for k in range(count):
            try:
                info = self._step(k, actions[k], rows, reward, terminated, truncated)
            except Exception as error:
                self._renew(k, "step", error)
                reward[k], terminated[k], truncated[k], info = np.nan, False, False, {}  # NaN ends the episode before this step
            else:
                self._renewed.discard(k)
            score.append(info.get("score"))
            success.append(info.get("is_success", info.get("success")))
            # An environment may use these keys for something else.
            own_group, own_level = info.get("group", ""), info.get("level", -1)
            group.append(plain(own_group)[:MOST_GROUP] if isinstance(own_group, str) else "")
            level.append(own_level if type(own_level) is int else -1)
            for key, values in named.items():
                values.append(info.get(key))  # at once: environments may share the dict, and change it in their steps
            self._beat()
        return SimulatorStep(rows, reward, terminated, truncated, score, success, group, level, named)

    def picture(self) -> np.ndarray | None:
        """Of the first environment. One that was made without a render mode is given one for the moment: most can draw then."""
        env = self._envs[0].unwrapped
        mode, modes = getattr(env, "render_mode", None), (env.metadata or {}).get("render_modes") or ()
        try:
            if mode is None and "rgb_array" in modes:
                env.render_mode = "rgb_array"
            found: Any = env.render() if env.render_mode == "rgb_array" else None
        except Exception:  # an environment may raise anything
            return None
        finally:
            env.render_mode = mode
        fits = isinstance(found, np.ndarray) and found.dtype == np.uint8 and found.ndim == 3 and found.shape[2] == 3
        return found if fits else None

    def _step(
        self,
        k: int,
        action: np.ndarray,
        rows: dict[str, np.ndarray],
        reward: np.ndarray,
        terminated: np.ndarray,
        truncated: np.ndarray,
    ) -> dict[str, Any]:
        """Steps environment k, writes its row of the arrays, and gives its info. Raises what it raises, and EnvError where it
        leaves Gymnasium's API or its spaces."""
        outcome: Any = self._envs[k].step(to_env_action(self._action_space, action))
        try:
            observation, reward[k], terminal, limited, info = outcome
        except (TypeError, ValueError):
            check_step(outcome)
            check_reward(outcome[1])
            raise
        if not isinstance(info, dict):
            check_step(outcome)
        self._write("step", rows, k, observation)
        terminated[k] = terminal = read_flag("terminated", terminal)
        truncated[k] = read_flag("truncated", limited) and not terminal
        return info

    def _renew(self, k: int, phase: str, error: Exception) -> None:
        """Makes environment k anew: its failure costs its episode, not those of the others. Raises the error if it may not be
        renewed, or has failed before its first step since it was."""
        if self._renewal is None or k in self._renewed:
            raise error
        self._renewed.add(k)
        self._renewals += 1
        if self._renewals <= REPORTED or str(self._renewals).strip("0") == "1":  # the 10th, the 100th …
            often = f" for the {self._renewals:,}th time here" if self._renewals > REPORTED else ""
            self._renewal.raised(f"environment {k} failed in {phase}{often}, and is made anew: {in_one_line(error)}")
        _close(self._envs[k])
        self._envs[k] = self._renewal.makers[k]()

    def close(self) -> None:
        """Closes all."""
        for env in self._envs:
            _close(env)

    def _write(self, phase: str, rows: dict[str, np.ndarray], row: int, observation: Any) -> None:
        if type(observation) is np.ndarray and (observation.dtype, observation.shape) == self._at_rest:
            rows[self._fields[0].name][row] = observation
            return
        values = read_observation(phase, self._observation_space, self._fields, observation)
        for field in self._fields:
            rows[field.name][row] = field.encode(values[field.name])

    def _empty(self, count: int) -> dict[str, np.ndarray]:
        return {field.name: np.empty((count, *field.shape), np.dtype(field.dtype)) for field in self._fields}
