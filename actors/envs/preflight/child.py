"""Makes one environment, resets and steps it, and reports what it has found."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import gymnasium
import msgspec
import numpy as np
import psutil
from gymnasium.wrappers import TimeLimit

from actors.config import EnvConfig, usual_environments
from actors.envs.base import EnvironmentFamily, EnvPlace, Setup
from actors.envs.make import open_family, options_table, read_env, resolve_env, wrap
from actors.envs.preflight.notes import IN_TURN, endless_note, space_notes
from actors.envs.preflight.parent import Line, PreflightRequest, PreflightResult
from actors.envs.preflight.steps import BATCH, CheckedEnv, first_steps, some_action, steps_without_end, try_batch, try_copies
from actors.envs.spaces import describe_space
from actors.envs.spec import experience_spec, flatten_observation, has_goals
from actors.errors import EnvError, in_one_line
from actors.hindsight import ADVICE, ComputeReward, GoalReward
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL

LATEST_SHARE = 0.8  # of the time limit: no further environment is begun that would not be ready by then
STEP_SHARE = 0.5  # of the time limit: a slow environment makes fewer steps
SLOWER = 1.5  # a further environment may take this many times as long to be made as the first
ORPHAN_GRACE_SECONDS = 5  # a child whose parent was killed ends itself this long after the time limit


def write_report(order: PreflightRequest) -> None:
    """Writes every line of the report; what the environment raises is in the last one."""
    phase = "import"
    with Path(order.report).open("w", encoding="utf-8") as report:

        def enter(name: str) -> None:
            nonlocal phase
            phase = name
            _write(report, Line(name))

        try:
            _write(report, Line("done", inspect(order, enter)))
        except EnvError as error:
            _write(report, Line(phase, error=str(error)))
        except Exception as error:  # an environment may raise anything; report it in one line
            where = "" if phase == "import" else f" in {phase}"
            _write(report, Line(phase, error=f"{order.env.get('id')}{where}: {in_one_line(error)}"))


def inspect(order: PreflightRequest, enter: Callable[[str], None]) -> PreflightResult:
    """Goes through the phases with one environment. Raises EnvError where it breaks Gymnasium's API."""
    config = read_env(order.env)
    name = config.id
    latest = time.monotonic() + config.preflight_seconds * LATEST_SHARE
    enter("make")
    config = resolve_env(config)
    family = open_family(config)
    began = time.perf_counter()
    env = family.make(_setup(config, 0))
    make_seconds = time.perf_counter() - began
    batch = family.simulators(env, BATCH)
    env = wrap(env, config)
    spec = experience_spec(env, config, order.codec)
    goals, checked = has_goals(env, family), CheckedEnv(env, spec, enter)
    one = family.decides_steps or (batch is not None and not config.wrappers)
    copies = 1 if one else order.copies or usual_environments(spec.has_images)
    try:
        steps = first_steps(checked, config.preflight_seconds * STEP_SHARE, keep_results=goals)
        endless = not steps.ended and not _has_limit(env, family)
        made = steps_without_end(env, steps.last, partial(some_action, env, spec), steps.until) if endless else 0
        if batch is not None and not config.wrappers:
            enter("the steps of a batch")
            try_batch(batch, spec, checked.timed, steps.until)
        if goals:
            enter("compute_reward")
        complaint = _goal_complaint(env, family.compute_reward(env), steps.results) if goals else ""
        if goals and not complaint and batch is not None and batch.levels:
            complaint = f"its curriculum changes when a goal counts as reached, which hindsight cannot know; {ADVICE}"
        resident_bytes = _resident_bytes()  # of one environment
        untried = try_copies(
            copies,
            lambda number: wrap(family.make(_setup(config, number)), config),
            env,
            lambda seen: some_action(env, spec, seen, 0),
            enter,
            latest - SLOWER * make_seconds,
        )
    except EnvError as error:
        raise EnvError(f"{name}: {error}") from error
    spec = steps.brightest.scaled(spec)
    spaces = {"observation": describe_space(env.observation_space), "action": describe_space(env.action_space)}
    enter("close")
    env.close()
    if batch is not None:
        batch.close()
    notes = [*family.notes(), *space_notes(env, batch, spec, config, family.default_stack, steps.brightest)]
    if untried:
        notes.append(untried)
    if batch is not None and config.wrappers:
        notes.append(IN_TURN)
    if made:
        notes.append(endless_note(name, made))
    own = options_table(config.options)
    seen = resident_bytes, checked.largest_observation, checked.largest_reward, make_seconds
    return PreflightResult(spec, checked.slowest_seconds, spaces, own, goals, tuple(notes), complaint, *seen, endless=made > 0)


def _setup(config: EnvConfig, number: int) -> Setup:
    return Setup(config.max_episode_steps, place=EnvPlace(0, number, number))


def _resident_bytes() -> int:
    """Memory of this process and of those that the environment has started."""
    total = 0
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total


def _has_limit(env: gymnasium.Env, family: EnvironmentFamily) -> bool:
    """True if episodes end after some number of steps, as far as that can be seen from outside."""
    if family.ends_episodes or (env.spec is not None and env.spec.max_episode_steps):
        return True
    inner: Any = env
    while inner is not inner.unwrapped:
        if isinstance(inner, TimeLimit):
            return True
        inner = inner.env
    return False


def _goal_complaint(env: gymnasium.Env, compute: ComputeReward | None, results: Sequence[tuple[Any, float]]) -> str:
    """The reason why one call of compute_reward for all steps does not give their rewards; empty if it does."""
    flat = [flatten_observation(env.observation_space, observation) for observation, _ in results]
    achieved, desired = (np.stack([values[name] for values in flat]) for name in (ACHIEVED_GOAL, DESIRED_GOAL))
    try:
        GoalReward(compute).check(achieved, desired, np.array([reward for _, reward in results]))
    except EnvError as error:
        return str(error)
    return ""


def _write(report: TextIO, line: Line) -> None:
    """Writes a line and flushes it, because the process may hang or die in the next call."""
    report.write(msgspec.json.encode(line).decode() + "\n")
    report.flush()


if __name__ == "__main__":
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=PreflightRequest)
    if hasattr(signal, "setitimer"):  # SIGALRM ends even a call that never returns to Python
        limit = order.env.get("preflight_seconds", EnvConfig().preflight_seconds)
        signal.setitimer(signal.ITIMER_REAL, limit + ORPHAN_GRACE_SECONDS)
    write_report(order)
    sys.stdout.flush()
    os._exit(0)  # the report is written; do not wait for a simulator's threads and exit handlers
