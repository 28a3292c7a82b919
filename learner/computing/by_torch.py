"""Updates by torch, on the device that is asked for or found."""

from __future__ import annotations

import torch

from learner.algorithms.base import Algorithm
from learner.config import LearnerConfig, LearnerSettings
from learner.devices import capabilities as devices
from learner.parallel.base import Group
from learner.parallel.ranks import resolve_each
from learner.updates.base import Update
from learner.updates.process import MeasuredLife
from learner.updates.runtime import LearnerRuntime
from transport.experience import ExperienceSpec
from transport.run_dir import RunDir

CPU_PARAMETERS = 300_000  # a dense network of at most this size trains faster on a CPU than by launching its kernels one by one


def begin(
    algorithm: Algorithm,
    settings: LearnerSettings,
    spec: ExperienceSpec,
    run_dir: RunDir,
    process: MeasuredLife,
    group: Group,
    device: torch.device | None,
) -> tuple[LearnerRuntime, Update]:
    """`device`: None where it has not been chosen yet. Raises ValueError (also DeviceError) and OSError."""
    config = settings.learner
    device = device or choose_device(config, algorithm, spec, group)
    devices.set_up(device, max(config.threads // group.size, 1))
    torch.manual_seed(settings.seed)
    runtime = LearnerRuntime(config, device, group, process, settings.replay.max_policy_lag, run_dir.compiled)
    return runtime, algorithm.update(spec, runtime)


def choose_device(config: LearnerConfig, algorithm: Algorithm, spec: ExperienceSpec, group: Group) -> torch.device:
    """The device of this process. Where none was asked for, a small dense network learns on the CPU, unless the accelerator
    launches each update as one graph. Raises DeviceError."""
    found = resolve_each(config.device, group.size)[group.rank]
    graphs = devices.capabilities(found).graphs and config.graphs != "off"
    if config.device != "auto" or found.type == "cpu" or group.size > 1 or config.compile or graphs:
        return found
    parameters = list(algorithm.policy(spec).parameters())
    if any(parameter.dim() > 2 for parameter in parameters) or sum(map(torch.numel, parameters)) > CPU_PARAMETERS:
        return found
    group.say(f"the CPU learns, because the network is small; --device {found.type} takes the other")
    return torch.device("cpu")
