"""Chooses the library that computes the updates of a run: the engine in numpy where it can and is faster, otherwise torch.

A learner by the engine imports no torch, which costs a process two seconds and 160 MB.
"""

from __future__ import annotations

from typing import NamedTuple

from learner.algorithms.base import Algorithm, is_current
from learner.config import LearnerConfig, LearnerSettings
from learner.devices.installing import missing_package
from learner.devices.known import has_torch, is_cpu
from learner.engine.runtime import EngineRuntime
from learner.engine.threads import limit_threads
from learner.parallel.base import Group
from learner.updates.base import Backend, Update
from learner.updates.process import MeasuredLife
from transport.experience import ExperienceSpec
from transport.run_dir import RunDir

SMALL = 600_000  # trained parameters up to which numpy was faster wherever it was measured (docs/explanation/decisions.md)
NO_TORCH = "No module named 'torch'"
UNKNOWN = "images, memories and parts of your own are torch's"


class Computing(NamedTuple):
    """What learns."""

    runtime: Backend
    update: Update


def begin(
    algorithm: Algorithm, settings: LearnerSettings, spec: ExperienceSpec, run_dir: RunDir, process: MeasuredLife, group: Group
) -> Computing:
    """Makes networks and optimisers on the device. Raises ValueError (also DeviceError) and OSError."""
    config = settings.learner
    device, why_not = None, obstacle(config)
    if not why_not and config.engine != "torch" and not is_cpu(config.device):
        from learner.computing.by_torch import choose_device

        device = choose_device(config, algorithm, spec, group)
        why_not = "" if device.type == "cpu" else f"--device {device} is torch's"
    if not why_not and config.engine != "torch":
        runtime = EngineRuntime(config, settings.seed, process, settings.replay.max_policy_lag, group)
        update = _by_numpy(algorithm, spec, runtime)
        if update is None:
            why_not = UNKNOWN
        elif _prefers_numpy(config, runtime.parameters) or _is_faster(algorithm, settings, spec, group):
            limit_threads(max(config.threads, 1))
            return Computing(runtime, update)
    if config.engine == "numpy":
        raise _refusal(why_not)
    from learner.computing import by_torch

    return Computing(*by_torch.begin(algorithm, settings, spec, run_dir, process, group, device))


def _prefers_numpy(config: LearnerConfig, parameters: int) -> bool:
    return config.engine == "numpy" or parameters <= SMALL or not has_torch()


def _is_faster(algorithm: Algorithm, settings: LearnerSettings, spec: ExperienceSpec, group: Group) -> bool:
    from learner.computing.trial import numpy_is_faster

    return numpy_is_faster(algorithm, settings, spec, group.say)


def check(algorithm: Algorithm, config: LearnerConfig, spec: ExperienceSpec) -> None:
    """Raises ValueError where numpy is asked for, or is all that is installed, and cannot learn, as far as that is known before a
    run."""
    if config.engine != "numpy" and has_torch():
        return
    if config.clone_steps and not has_torch():
        raise ValueError(f"--learner.clone-steps: {missing_package(NO_TORCH)}")
    if config.engine == "torch":
        raise ValueError(missing_package(NO_TORCH))
    named = config.device not in ("auto", "cpu")
    why_not = obstacle(config) or (f"--device {config.device} is torch's" if named else "")
    if not why_not and _by_numpy(algorithm, spec, EngineRuntime(config)) is None:
        why_not = UNKNOWN
    if why_not and config.engine != "numpy":
        raise ValueError(f"{why_not}, and {missing_package(NO_TORCH)}")
    if why_not:
        raise _refusal(why_not)


def _by_numpy(algorithm: Algorithm, spec: ExperienceSpec, runtime: EngineRuntime) -> Update | None:
    return algorithm.array_update(spec, runtime) if is_current(algorithm, "array_update", "update") else None


def _refusal(why: str) -> ValueError:
    return ValueError(f"--learner.engine numpy cannot learn here: {why}; take auto, which chooses what can")


def obstacle(config: LearnerConfig) -> str:
    """The setting that only torch serves; empty where there is none."""
    settings = {
        f"--learner.processes {config.processes}": config.processes > 1,
        "--learner.compile": config.compile,
        "--learner.graphs on": config.graphs == "on",
        f"--learner.precision {config.precision}": config.precision not in ("auto", "float32"),
        "--learner.accumulation": config.accumulation > 1,
        "--learner.memory-limit-bytes": config.memory_limit_bytes > 0,
    }
    return next((f"{flag} is torch's" for flag, given in settings.items() if given), "")
