"""The steps of the pre-flight: of one environment, of a batch that one call steps, and of copies beside each other."""

from __future__ import annotations

import copy
import time
from bdb import BdbQuit
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from actors.envs.base import Simulators
from actors.envs.foreign.actions import to_env_action
from actors.envs.preflight.notes import Brightest
from actors.envs.preflight.parent import ADVICE, BESIDE, ENDLESS_STEPS
from actors.envs.spaces import check_observation, check_reward, check_step, kind
from actors.errors import EnvError, in_one_line
from transport.experience import ACTION_MASK, Categorical, Continuous, ExperienceSpec, MultiCategorical

STEPS = 20
ENDLESS_SECONDS = 1.0  # for the end of an episode that has no limit of steps
BATCH = 2  # environments that one call steps


class CheckedEnv:
    """One environment. Resets and steps are timed and checked; each raises EnvError where it breaks Gymnasium's API."""

    def __init__(self, env: gymnasium.Env, spec: ExperienceSpec, enter: Callable[[str], None]) -> None:
        self.env, self.spec, self._enter = env, spec, enter
        self.slowest_seconds = self.largest_observation = self.largest_reward = 0.0

    def timed(self, call: Callable[[], Any]) -> Any:
        """The result of a call, whose time counts."""
        began = time.perf_counter()  # on Windows the other clock goes in steps of 16 ms
        result = call()
        self.slowest_seconds = max(self.slowest_seconds, time.perf_counter() - began)
        return result

    def reset(self, seed: int | None) -> Any:
        """The first observation of an episode. The phase is "step" then."""
        self._enter("reset")
        observation = self.timed(lambda: _reset(self.env, seed))
        self._check("reset", observation)
        self._enter("step")
        return observation

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """The next observation, the reward, and whether the episode ended."""
        outcome: Any = self.timed(lambda: self.env.step(action))
        check_step(outcome)
        observation, reward, terminated, truncated, _ = outcome
        self._check("step", observation)
        check_reward(reward)
        self.largest_reward = max(self.largest_reward, abs(float(reward)))
        return observation, reward, bool(terminated or truncated)

    def _check(self, phase: str, observation: Any) -> None:
        values = check_observation(phase, self.env.observation_space, self.spec.fields, observation)
        largest = [float(np.abs(values[field.name]).max()) for field in self.spec.fields if field.dtype.startswith("<f")]
        self.largest_observation = max(self.largest_observation, *largest, 0.0)


class FirstSteps(NamedTuple):
    """Results of the first steps of an environment."""

    last: Any  # observation
    ended: bool  # whether an episode has ended
    brightest: Brightest
    results: list[tuple[Any, float]]  # if they are kept: observation and reward of each step
    until: float  # the monotonic time at which later phases break off, too


def first_steps(checked: CheckedEnv, seconds: float, keep_results: bool) -> FirstSteps:
    """Resets the environment and makes STEPS steps, or as many as `seconds` allow. Raises EnvError."""
    env, spec = checked.env, checked.spec
    env.action_space.seed(0)
    seen = checked.reset(0)
    brightest = Brightest(env.observation_space, seen)
    until, ended = time.monotonic() + seconds, False
    results: list[tuple[Any, float]] = []
    for number in range(STEPS):
        seen, reward, over = checked.step(some_action(env, spec, seen, number))
        brightest.see(seen)
        if keep_results:
            results.append((copy.deepcopy(seen), float(reward)))
        if over:
            ended = True
            seen = checked.reset(None)
        if time.monotonic() > until:
            break  # slow, but correct so far
    return FirstSteps(seen, ended, brightest, results, until)


def try_batch(batch: Simulators, spec: ExperienceSpec, timed: Callable[[Callable[[], Any]], Any], until: float) -> None:
    """Resets and steps simulators, until the monotonic time `until` at most. Raises EnvError for an observation of another shape
    than the environment's."""
    seen = timed(lambda: batch.reset(np.arange(BATCH), range(BATCH)))
    _check_batch("reset", seen, spec, BATCH)
    for number in range(STEPS):
        outcome = timed(partial(batch.step, _batch_actions(spec, seen, number)))
        seen = outcome.observation
        _check_batch("step", seen, spec, BATCH)
        ended = np.flatnonzero(outcome.terminated | outcome.truncated)
        if len(ended):
            first = timed(partial(batch.reset, ended, [None] * len(ended)))
            _check_batch("reset", first, spec, len(ended))
            for name, rows in first.items():
                seen[name][ended] = rows
        if time.monotonic() > until:
            break


def _batch_actions(spec: ExperienceSpec, seen: dict[str, np.ndarray], number: int) -> np.ndarray:
    """[BATCH] indices that the observations allow, each in turn, or [BATCH, A] floats in the bounds."""
    if isinstance(spec.action, MultiCategorical):
        return np.random.default_rng(number).integers(spec.action.sizes, size=(BATCH, len(spec.action.sizes)))
    if isinstance(spec.action, Continuous):
        return np.random.default_rng(number).uniform(spec.action.low, spec.action.high, (BATCH, len(spec.action.low)))
    of_each = [_allowed(mask) for mask in seen[ACTION_MASK]] if spec.action.masked else [np.arange(spec.action.n)] * BATCH
    return np.array([choices[number % len(choices)] for choices in of_each])


def _check_batch(phase: str, observation: dict[str, np.ndarray], spec: ExperienceSpec, count: int) -> None:
    for field in spec.fields:
        found = observation[field.name].shape if field.name in observation else "nothing"
        if found != (count, *field.shape):
            raise EnvError(f"{phase} of {count} gave {field.name} of shape {found}, not {(count, *field.shape)}")


def steps_without_end(env: gymnasium.Env, seen: Any, action: Callable[[Any, int], Any], until: float) -> int:
    """Steps on by action(observation, number), until the monotonic time `until` at most. Returns the number of steps, 0 if an
    episode ended or the environment raised: what happens that late does not stop a launch."""
    until = min(time.monotonic() + ENDLESS_SECONDS, until)
    for number in range(ENDLESS_STEPS):
        if time.monotonic() > until:
            return number
        try:
            seen, _, terminated, truncated, _ = env.step(action(seen, number))
        except BdbQuit:
            raise
        except Exception:
            return 0
        if terminated or truncated:
            return 0
    return ENDLESS_STEPS


def try_copies(
    count: int,
    make: Callable[[int], gymnasium.Env],
    first: gymnasium.Env,
    action: Callable[[Any], Any],
    enter: Callable[[str], None],
    until: float,
) -> str:
    """Makes, resets and steps `count` - 1 environments beside the first, and then the first again: some have a fixed port or a
    window that two cannot share. Closes all but the first.

    `make` makes the one of a number from 1; action(observation) is the action to take; `enter` says which phase begins. None is
    begun after the monotonic time `until`. Returns a note where some were left out. Raises EnvError."""
    made: list[gymnasium.Env] = []
    number = 0
    try:
        for number in range(1, count):
            if time.monotonic() > until:
                tried = f"{number} of the {count} environments of an actor were tried"
                return f"{tried}: --env.preflight-seconds is too short for more"
            enter(f"environment {number + 1} of {count}{BESIDE}")
            made.append(make(number))
            _try(made[-1], number, action)
        if made:
            _try(first, 0, action)
    except BdbQuit:
        raise
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


def _reset(env: gymnasium.Env, seed: int | None) -> Any:
    """The first observation. Raises EnvError if `reset` does not follow Gymnasium's API."""
    try:
        result: Any = env.reset(seed=seed)
    except TypeError as error:
        if "unexpected keyword argument 'seed'" not in str(error):
            raise
        raise EnvError("reset must take a seed, as in Gymnasium's API: `def reset(self, *, seed=None, options=None)`") from error
    if not (isinstance(result, tuple) and len(result) == 2):
        raise EnvError(f"reset must return (observation, info), as in Gymnasium's API, not {kind(result)}")
    if not isinstance(result[1], dict):
        raise EnvError(f"reset must return a dict as info, not {kind(result[1])}")
    return result[0]


def some_action(env: gymnasium.Env, spec: ExperienceSpec, seen: Any, number: int) -> Any:
    """An action in the form that actors use: each discrete action that the observation `seen` allows in turn; samples of other
    spaces."""
    if not isinstance(spec.action, Categorical):
        return env.action_space.sample()
    choices = _allowed(seen[ACTION_MASK]) if spec.action.masked else np.arange(spec.action.n)
    return to_env_action(env.action_space, choices[number % len(choices)])


def _allowed(mask: Any) -> np.ndarray:
    """The actions that a mask allows. Raises EnvError for one that is none."""
    if not np.isin(mask, (0, 1)).all() or not np.any(mask):
        raise EnvError(
            f"the {ACTION_MASK} {np.asarray(mask).tolist()} must be 1 where an action is allowed, 0 elsewhere, not all 0"
        )
    return np.flatnonzero(mask)
