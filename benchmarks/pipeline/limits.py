"""`python -m benchmarks.pipeline.limits KIND RUN_DIR SECONDS`: what one process of a run does at most, alone.

KIND is `simulator` or `environment` (steps per second), `gather` (items per second) or `update` (updates per second).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from actors.envs.make import make_env
from actors.envs.vector import VectorEnv
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from transport.experience import Categorical, ExperienceSpec, read_spec
from transport.run_dir import RunDir
from transport.system import keep_memory


def repeated(action: Callable[[], object], seconds: float) -> float:
    """Times per second."""
    for _ in range(3):
        action()
    begun, times = time.monotonic(), 0
    while time.monotonic() < begun + seconds:
        action()
        times += 1
    return times / (time.monotonic() - begun)


def simulator(config: RunConfig, spec: ExperienceSpec, seconds: float) -> float:
    """Steps per second of the environments of one actor, nothing around them."""
    envs = [make_env(config.env) for _ in range(config.actors.envs_per_actor)]
    for env in envs:
        env.reset(seed=0)

    def step() -> None:
        for env in envs:
            _, _, terminated, truncated, _ = env.step(0)
            if terminated or truncated:
                env.reset()

    return len(envs) * repeated(step, seconds)


def environment(config: RunConfig, spec: ExperienceSpec, seconds: float) -> float:
    """Steps per second of one actor's VectorEnv, random actions."""
    count = config.actors.envs_per_actor
    env = VectorEnv(config.env, spec, count, range(count))
    env.reset()
    generator = np.random.default_rng(0)
    assert isinstance(spec.action, Categorical)
    choices = spec.action.n
    return count * repeated(lambda: env.step(generator.integers(choices, size=count)), seconds)


def gather(config: RunConfig, spec: ExperienceSpec, seconds: float) -> float:
    """Items per second of random windows out of as much memory as replay has, and nothing else."""
    window, batch = spec.stack + spec.n_step, config.learner.batch_size
    rows = config.replay.capacity * spec.rows(spec.chunk_length) // spec.chunk_length
    frames = np.ones((rows, *spec.fields[0].shape), np.uint8)
    out = np.ones((batch * window, *spec.fields[0].shape), np.uint8)
    generator = np.random.default_rng(0)

    def take() -> None:
        starts = generator.integers(0, rows - window, batch)
        np.take(frames, (starts[:, None] + np.arange(window)).reshape(-1), axis=0, out=out, mode="clip")

    return batch * repeated(take, seconds)


def update(config: RunConfig, spec: ExperienceSpec, seconds: float) -> float:
    """Updates per second on one batch that is there."""
    import torch  # in no process but this one

    from learner.algorithms.dqn.algorithm import Dqn
    from learner.devices import capabilities as devices
    from learner.devices.detection import resolve
    from learner.feed.batches import to_device
    from learner.updates.runtime import LearnerRuntime
    from replay.client.base import SampledBatch
    from replay.table.layout import layout

    device = resolve(config.learner.device)
    devices.set_up(device, config.learner.threads)
    arrangement = layout(spec, config.learner.batch_size)
    arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
    arrays["observation/observation"][:] = np.random.default_rng(0).integers(0, 256, arrays["observation/observation"].shape)
    arrays["observation_index"][:] = np.arange(spec.stack)
    arrays["next_index"][:] = np.arange(spec.stack) + 1
    arrays["steps"][:] = 1
    arrays["probability"][:] = 1.0
    torch.manual_seed(0)
    learned = Dqn(config.algorithm.options).update(spec, LearnerRuntime(config.learner, device))
    batch = to_device(SampledBatch(0, 0, arrays), spec, device)

    def once() -> None:
        priorities = learned.update(batch).priorities
        assert priorities is not None
        priorities.cpu()

    return repeated(once, seconds)


def measure(kind: str, path: str, seconds: str) -> float:
    """The figure of a kind."""
    keep_memory()  # as every process of a run does: without it, an update alone spends more on page faults than on arithmetic
    run = RunDir(Path(path))
    part = {"simulator": simulator, "environment": environment, "gather": gather, "update": update}[kind]
    return part(load_run_config(run, trusted=True), read_spec(run.spec.read_bytes()), float(seconds))


if __name__ == "__main__":
    print(measure(*sys.argv[1:]))
