"""Makes one environment, resets and steps it, and reports what it has found."""

from __future__ import annotations

import copy
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TextIO

import gymnasium
import msgspec
import numpy as np
import psutil
from gymnasium.wrappers import NormalizeObservation, NormalizeReward, TimeLimit, vector

from actors.config import EnvConfig, usual_environments
from actors.envs.base import EnvironmentFamily, Place, Setup, Simulators
from actors.envs.foreign.actions import to_env_action
from actors.envs.foreign.masks import METHOD, MaskFromInfo
from actors.envs.make import open_family, options_table, read_env, settle, wrap
from actors.envs.preflight.copies import Copies
from actors.envs.preflight.parent import CODE_SCALE, ENDLESS_STEPS, Facts, Line, Order, may_hold_codes
from actors.envs.spaces import check_observation, check_reward, check_step, describe_space, kind
from actors.envs.spec import (
    experience_spec,
    flatten_observation,
    has_goals,
    integer_range,
    is_image,
    is_stacked,
    is_text,
    leaves,
    looks_like_an_image_of_integers,
)
from actors.errors import EnvError, in_one_line
from actors.hindsight import ComputeReward, GoalReward
from transport.experience import (
    ACHIEVED_GOAL,
    ACTION_MASK,
    DESIRED_GOAL,
    Categorical,
    Continuous,
    ExperienceSpec,
    MultiCategorical,
)

Enter = Callable[[str], None]  # says which phase begins
STEPS = 20
LATEST_SHARE = 0.8  # of the time limit: no further environment is begun that would not be ready by then
STEP_SHARE = 0.5  # of the time limit: a slow environment makes fewer steps
ENDLESS_SECONDS = 1.0  # for the end of an episode that has no limit of steps
BATCH = 2  # environments that one call steps
IN_TURN = "env.wrappers see every step of an environment, so environments are stepped in turn, not all in one call"
SCALING = {
    "--algorithm.normalize-observation": (NormalizeObservation, vector.NormalizeObservation),
    "--algorithm.normalize-reward": (NormalizeReward, vector.NormalizeReward),
}
DARK = 32  # an image of uint8 that never reaches this value is no photograph
ORPHAN_GRACE_SECONDS = 5  # a child whose parent was killed ends itself this long after the time limit


def write_report(order: Order) -> None:
    """Writes every line of the report; what the environment raises is in the last one."""
    phase = "import"
    with Path(order.report).open("w", encoding="utf-8") as report:

        def enter(name: str) -> None:
            nonlocal phase
            phase = name
            _write(report, Line(name))

        try:
            _write(report, Line("done", _inspect(order, enter)))
        except EnvError as error:
            _write(report, Line(phase, error=str(error)))
        except Exception as error:  # an environment may raise anything; report it in one line
            where = "" if phase == "import" else f" in {phase}"
            _write(report, Line(phase, error=f"{order.env.get('id')}{where}: {in_one_line(error)}"))


class _CheckedEnv:
    """One environment. Resets and steps are timed and checked; each raises EnvError where it breaks Gymnasium's API."""

    def __init__(self, env: gymnasium.Env, spec: ExperienceSpec, enter: Enter) -> None:
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


class _FirstSteps(NamedTuple):
    """What the first steps of an environment have shown."""

    last: Any  # observation
    ended: bool  # whether an episode has ended
    brightest: _Brightest
    results: list[tuple[Any, float]]  # if they are kept: observation and reward of each step
    until: float  # the monotonic time at which later phases break off, too


def _inspect(order: Order, enter: Enter) -> Facts:
    """Goes through the phases with one environment. Raises EnvError where it breaks Gymnasium's API."""
    config = read_env(order.env)
    name = config.id
    latest = time.monotonic() + config.preflight_seconds * LATEST_SHARE
    enter("make")
    config = settle(config)
    family = open_family(config)
    began = time.perf_counter()
    env = family.make(_setup(config, 0))
    make_seconds = time.perf_counter() - began
    batch = family.simulators(env, BATCH)
    env = wrap(env, config)
    spec = experience_spec(env, config, order.codec)
    goals, checked = has_goals(env, family), _CheckedEnv(env, spec, enter)
    copies = 1 if batch is not None and not config.wrappers else order.copies or usual_environments(spec.has_images)
    try:
        steps = _first_steps(checked, config.preflight_seconds * STEP_SHARE, keep_results=goals)
        endless = not steps.ended and not _has_limit(env, family)
        made = _steps_without_end(env, steps.last, partial(_some_action, env, spec), steps.until) if endless else 0
        if batch is not None and not config.wrappers:
            enter("the steps of a batch")
            _try_batch(batch, spec, checked.timed, steps.until)
        if goals:
            enter("compute_reward")
        complaint = _goal_complaint(env, family.compute_reward(env), steps.results) if goals else ""
        resident_bytes = _resident_bytes()  # of one environment
        beside = Copies(lambda number: wrap(family.make(_setup(config, number)), config), copies, enter)
        left_out = beside.try_all(env, lambda seen: _some_action(env, spec, seen, 0), make_seconds, latest)
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from error
    spec = steps.brightest.scaled(spec)
    spaces = {"observation": describe_space(env.observation_space), "action": describe_space(env.action_space)}
    enter("close")
    env.close()
    if batch is not None:
        batch.close()
    in_turn = (IN_TURN,) if batch is not None and config.wrappers else ()
    endless_note = (_endless_note(name, made),) if made else ()
    notes = (
        family.notes()
        + _scaling_notes(env, batch)
        + _left_out_notes(env, spec)
        + tuple(filter(None, [left_out]))
        + in_turn
        + steps.brightest.notes(spec)
        + _stack_notes(env.observation_space, spec, config)
        + _float_notes(spec)
        + _integer_notes(env.observation_space)
        + endless_note
    )
    own = options_table(config.options)
    seen = checked.largest_observation, checked.largest_reward, make_seconds
    return Facts(spec, checked.slowest_seconds, spaces, own, goals, notes, complaint, resident_bytes, *seen, endless=made > 0)


def _setup(config: EnvConfig, number: int) -> Setup:
    return Setup(config.max_episode_steps, place=Place(0, number, number))


def _first_steps(checked: _CheckedEnv, seconds: float, keep_results: bool) -> _FirstSteps:
    """Resets the environment and makes STEPS steps, or as many as `seconds` allow. Raises EnvError."""
    env, spec = checked.env, checked.spec
    env.action_space.seed(0)
    seen = checked.reset(0)
    brightest = _Brightest(env.observation_space, seen)
    until, ended = time.monotonic() + seconds, False
    results: list[tuple[Any, float]] = []
    for number in range(STEPS):
        seen, reward, over = checked.step(_some_action(env, spec, seen, number))
        brightest.see(seen)
        if keep_results:
            results.append((copy.deepcopy(seen), float(reward)))
        if over:
            ended = True
            seen = checked.reset(None)
        if time.monotonic() > until:
            break  # slow, but correct so far
    return _FirstSteps(seen, ended, brightest, results, until)


def _resident_bytes() -> int:
    """Memory of this process and of those that the environment has started."""
    total = 0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _try_batch(batch: Simulators, spec: ExperienceSpec, timed: Callable[[Callable[[], Any]], Any], until: float) -> None:
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


def _steps_without_end(env: gymnasium.Env, seen: Any, action: Callable[[Any, int], Any], until: float) -> int:
    """Steps on by action(observation, number), until the monotonic time `until` at most. Returns the number of steps, 0 if an
    episode ended or the environment raised: what happens that late does not stop a launch."""
    until = min(time.monotonic() + ENDLESS_SECONDS, until)
    for number in range(ENDLESS_STEPS):
        if time.monotonic() > until:
            return number
        try:
            seen, _, terminated, truncated, _ = env.step(action(seen, number))
        except Exception:
            return 0
        if terminated or truncated:
            return 0
    return ENDLESS_STEPS


def _has_limit(env: gymnasium.Env, family: EnvironmentFamily) -> bool:
    """Whether episodes end after some number of steps, as far as that can be seen from outside."""
    if family.ends_episodes or (env.spec is not None and env.spec.max_episode_steps):
        return True
    inner: Any = env
    while inner is not inner.unwrapped:
        if isinstance(inner, TimeLimit):
            return True
        inner = inner.env
    return False


class _Brightest:
    """The greatest value seen in each image of uint8 whose space allows up to 255."""

    def __init__(self, space: gymnasium.Space, observation: Any) -> None:
        self._space = space
        self._seen: dict[str, int] = {}
        self.see(observation)

    def see(self, observation: Any) -> None:
        for name, leaf, value in leaves(self._space, observation):
            bounds: Any = leaf
            if is_image(leaf) and str(bounds.dtype) == "uint8" and int(bounds.high.max()) == 255:
                self._seen[name] = max(self._seen.get(name, 0), int(np.max(value)))

    def scaled(self, spec: ExperienceSpec) -> ExperienceSpec:
        """The spec with small dark images read as codes, by a scale that does not depend on which of them were seen."""
        dark = {name for name, greatest in self._seen.items() if 0 < greatest < DARK}
        codes = [field.name in dark and may_hold_codes(field) for field in spec.fields]
        scaled = (
            msgspec.structs.replace(field, scale=CODE_SCALE) if code else field
            for field, code in zip(spec.fields, codes, strict=True)
        )
        return msgspec.structs.replace(spec, fields=tuple(scaled))

    def notes(self, spec: ExperienceSpec) -> tuple[str, ...]:
        scales = {field.name: field.scale for field in spec.fields}
        return tuple(
            f"{name} is an image of values up to 255, and none above {greatest} was seen: "
            + (
                f"such a small one counts as a grid of codes, divided by {1 / CODE_SCALE:g} instead of 255"
                if scales[name] == CODE_SCALE
                else f"if it is a grid of codes, wrap the environment so that its space has high={greatest}, or the network sees "
                "almost nothing of it"
            )
            for name, greatest in self._seen.items()
            if 0 < greatest < DARK
        )


def _stack_notes(space: gymnasium.Space, spec: ExperienceSpec, config: EnvConfig) -> tuple[str, ...]:
    """Notes about images that are not stacked because they are stacks of their own."""
    if spec.stack > 1 or config.stack:
        return ()
    shapes = {field.name: field.shape for field in spec.fields}
    return tuple(
        f"{name} is an image of {shapes[name][0]} channels, which counts as a stack of its own, so it is not stacked again: "
        "--env.stack 4 does so"
        for name, leaf, _ in leaves(space)
        if is_stacked(leaf)
    )


def _float_notes(spec: ExperienceSpec) -> tuple[str, ...]:
    """Notes about images of floats."""
    return tuple(
        f"{field.name} is an image of floats, which networks read as a vector: --env.quantise true stores it as bytes, and they "
        "read it with convolutions"
        for field in spec.visible
        if len(field.shape) == 3 and not field.is_image
    )


def _scaling_notes(env: gymnasium.Env, batch: Simulators | None) -> tuple[str, ...]:
    """Notes about wrappers that scale by statistics of their own copy, which no checkpoint holds."""
    found: dict[str, str] = {}
    for each in (env, batch):
        inner: Any = each
        while inner is not None:
            found |= {option: type(inner).__name__ for option, kinds in SCALING.items() if isinstance(inner, kinds)}
            inner = getattr(inner, "env", None) or getattr(inner, "batch", None)
    return tuple(
        f"{name} scales by statistics of its own, which differ in each copy of the environment and are saved with no policy, so "
        f"that evaluations measure something else: leave it out, and take {option} true"
        for option, name in found.items()
    )


def _left_out_notes(env: gymnasium.Env, spec: ExperienceSpec) -> tuple[str, ...]:
    """Notes about what an environment offers and no policy sees: texts, and a mask that is not in the observation."""
    space, notes = env.observation_space, list[str]()
    if isinstance(space, gymnasium.spaces.Dict):
        notes += [
            f"{name} is text, which no network reads: it is left out" for name, part in space.spaces.items() if is_text(part)
        ]
    masked = isinstance(spec.action, Categorical) and spec.action.masked
    if not masked and env.has_wrapper_attr(METHOD):
        discrete = isinstance(env.action_space, gymnasium.spaces.Discrete)
        wrapper = f"--env.wrappers {MaskFromInfo.__module__}:{MaskFromInfo.__name__} does"
        notes.append(
            f"it has {METHOD}(), which is not used: {wrapper if discrete else 'such a mask is of Discrete actions only'}"
        )
    return tuple(notes)


def _integer_notes(space: gymnasium.Space) -> tuple[str, ...]:
    """Notes about images of integers, which are stored as bytes by their bounds."""
    notes = []
    for name, leaf, _ in leaves(space):
        if not looks_like_an_image_of_integers(leaf):
            continue
        box: Any = leaf
        low, width = integer_range(box)
        values = f"{name} is an image of {box.dtype} with values from {low:,} to {low + width:,}"
        advice = "if there are fewer, wrap the environment so that its space has closer bounds"
        if not is_image(leaf):
            notes.append(
                f"{values}, too many to be stored as bytes, so a network reads it as a vector of unscaled numbers: {advice}"
            )
        elif width > 255:
            notes.append(f"{values}, which are stored in 256 levels: {advice}")
    return tuple(notes)


def _endless_note(env_id: str, steps: int) -> str:
    """The note about an environment whose episode has not ended in `steps` steps."""
    return (
        f"no episode of {env_id} has ended in {steps:,} random steps, and it has no limit of steps. Evaluations end theirs after "
        f"{ENDLESS_STEPS:,} steps unless --evaluator.max-episode-steps is given; --env.max-episode-steps N is for training, too"
    )


def _goal_complaint(env: gymnasium.Env, compute: ComputeReward | None, results: Sequence[tuple[Any, float]]) -> str:
    """Why compute_reward, called once for all steps, does not give the rewards of these steps; empty if it does."""
    flat = [flatten_observation(env.observation_space, observation) for observation, _ in results]
    achieved, desired = (np.stack([values[name] for values in flat]) for name in (ACHIEVED_GOAL, DESIRED_GOAL))
    try:
        GoalReward(compute).check(achieved, desired, np.array([reward for _, reward in results]))
    except EnvError as error:
        return str(error)
    return ""


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


def _some_action(env: gymnasium.Env, spec: ExperienceSpec, seen: Any, number: int) -> Any:
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


def _write(report: TextIO, line: Line) -> None:
    """Writes a line and flushes it, because the process may hang or die in the next call."""
    report.write(msgspec.json.encode(line).decode() + "\n")
    report.flush()


if __name__ == "__main__":
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    if hasattr(signal, "setitimer"):  # SIGALRM ends even a call that never returns to Python
        limit = order.env.get("preflight_seconds", EnvConfig().preflight_seconds)
        signal.setitimer(signal.ITIMER_REAL, limit + ORPHAN_GRACE_SECONDS)
    write_report(order)
    sys.stdout.flush()
    os._exit(0)  # the report is written; do not wait for a simulator's threads and exit handlers
