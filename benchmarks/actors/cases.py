"""The processes of `headrace bench env`: the lower layers of an actor's work."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from actors.agent import Agent
from actors.config import ActorSettings, EnvConfig
from actors.envs.base import Simulators
from actors.envs.make import make_env, open_family
from actors.envs.vector import VectorEnv
from actors.settings import read_settings
from learner.algorithms.base import make_algorithm
from learner.inference.module import infer_by
from transport.experience import Categorical, ExperienceSpec
from transport.run_dir import RunDir

RESTART_STEPS = 200  # of the emulator alone, which does not know when an episode ends
WARM_STEPS = 3  # vector steps before the clock starts


class Timing(NamedTuple):
    """The work of a process in its time."""

    steps: int
    wall_seconds: float
    processor_seconds: float


def alone(run: RunDir, case: str, start_folder: Path, seconds: float) -> Timing:
    """One process's part of a case without other roles: it says when it is ready, and waits for the others."""
    settings = read_settings(run, index=0)
    count = settings.process.actors.envs_per_actor
    step = {"simulator": _simulator, "environment": _environment, "policy": _policy}[case](settings, count)
    for _ in range(WARM_STEPS):
        step()
    (start_folder / f"ready-{os.getpid()}").touch()
    while not (start_folder / "go").exists():
        time.sleep(0.01)
    begun, used, steps = time.monotonic(), time.process_time(), 0
    while time.monotonic() < begun + seconds:
        step()
        steps += count
    return Timing(steps, time.monotonic() - begun, time.process_time() - used)


def random_actions(spec: ExperienceSpec, count: int, generator: np.random.Generator) -> np.ndarray:
    """[count] indices or [count, A] floats, uniform."""
    if isinstance(spec.action, Categorical):
        return generator.integers(spec.action.n, size=count)
    low, high = np.array(spec.action.low), np.array(spec.action.high)
    return generator.uniform(low, high, (count, len(low))).astype(np.float32)


def _simulator(settings: ActorSettings, count: int) -> Callable[[], None]:
    """Steps every environment's simulator once: emulators where there are some, boards that step as one, otherwise the
    environment as it comes."""
    env = make_env(settings.env)
    if hasattr(env.unwrapped, "console"):
        return _emulators(settings.env, count)
    if (together := open_family(settings.env).simulators(env, count)) is not None:
        return _together(together, settings.spec, count)
    envs = [make_env(settings.env) for _ in range(count)]
    for env in envs:
        env.reset(seed=0)

    def play() -> None:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                env.reset()

    return play


def _emulators(config: EnvConfig, count: int) -> Callable[[], None]:
    envs, generator, taken = [make_env(config) for _ in range(count)], np.random.default_rng(0), 0
    frames = open_family(config).frames_per_step
    starts = []
    for env in envs:
        env.reset(seed=0)
        starts.append(env.unwrapped.console.save())  # type: ignore[attr-defined]

    def emulate() -> None:
        nonlocal taken
        taken += 1
        for env, start in zip(envs, starts, strict=True):
            console = env.unwrapped.console  # type: ignore[attr-defined]
            if taken % RESTART_STEPS == 0:
                console.restore(start)
            console.press(int(generator.integers(256)) & ~0b1100)  # any buttons but START and SELECT
            console.advance(frames)

    return emulate


def _together(simulators: Simulators, spec: ExperienceSpec, count: int) -> Callable[[], None]:
    generator = np.random.default_rng(0)
    simulators.reset(np.arange(count), range(count))

    def play() -> None:
        outcome = simulators.step(random_actions(spec, count, generator))
        ended = np.flatnonzero(outcome.terminated | outcome.truncated)
        if len(ended):
            simulators.reset(ended, [None] * len(ended))

    return play


def _environment(settings: ActorSettings, count: int) -> Callable[[], None]:
    """Steps a vectorised environment, observations included, by random actions."""
    env, generator = VectorEnv(settings.env, settings.spec, count, range(count)), np.random.default_rng(0)
    env.reset()
    return lambda: env.step(random_actions(settings.spec, count, generator)) and None


def _policy(settings: ActorSettings, count: int) -> Callable[[], None]:
    """Steps a vectorised environment by a policy's actions, all of them from one forward pass."""
    torch.set_num_threads(1)
    env, algorithm = VectorEnv(settings.env, settings.spec, count, range(count)), make_algorithm(settings.algorithm)
    inference = infer_by(algorithm.policy(settings.spec), settings.process.actors.precision, count)
    agent = Agent(settings.spec, algorithm.acting(settings.spec, inference), count)
    agent.reset(env.reset())

    def play() -> None:
        step = env.step(agent.act("stochastic")[0])
        agent.push(step.observation, step.terminated | step.truncated)

    return play
