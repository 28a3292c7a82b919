"""The device of a learner for which none was asked: the CPU instead of an accelerator, where its updates are faster there.

An accelerator computes a small network in no time and takes longer to be told so. How long depends on the machine, the algorithm
and on graphs, so some updates are timed on both, on a made-up batch and with networks that are thrown away.
"""

from __future__ import annotations

import statistics
import time
from typing import Protocol

import torch

from learner.algorithms.base import make_algorithm
from learner.devices import capabilities as devices
from learner.feed.batches import dummy_batch, to_batch
from learner.parallel.group import Group
from learner.parallel.ranks import resolve_each
from learner.settings import LearnerSettings
from learner.updates.acceleration import WARM_STEPS
from learner.updates.runtime import LearnerRuntime, NoProcess
from learner.updates.trial import TRIED_STEPS

CPU = torch.device("cpu")
MOST_PARAMETERS = 300_000  # of a network that is tried on the CPU: more are slow there with every batch
BUDGET_SECONDS = 3.0  # on each device; two updates are timed even if they take longer
TIMED_UPDATES = 10
GAIN = 0.8  # the CPU is also the actors', so it has to take less than this of the accelerator's time


class Life(Protocol):
    """The part of a process's Lifetime that is used here."""

    @property
    def stopping(self) -> bool: ...

    def beat(self) -> None: ...


class Quiet(Group):
    """Of a trial nothing is logged."""

    def say(self, line: str) -> None:
        pass

    def warn(self, line: str) -> None:
        pass


def choose_device(settings: LearnerSettings, group: Group, life: Life) -> torch.device:
    """The device of this process. Raises DeviceError."""
    config = settings.learner
    found = resolve_each(config.device, group.size)[group.rank]
    if config.device != "auto" or found.type == "cpu" or group.size > 1 or config.compile:
        return found
    precision = torch.get_float32_matmul_precision()  # of the whole process, and set for the accelerator
    try:
        if not _small(settings):
            return found
        there, here = (update_seconds(settings, device, life) for device in (found, CPU))
    except Exception:  # an algorithm may refuse a made-up batch, a device the precision: where the learner learns, that is said
        return found
    finally:
        torch.set_float32_matmul_precision(precision)
        devices.clear_cache(found)
    if life.stopping or here >= GAIN * there:
        return found
    times = f"an update takes {1000 * here:.3g} ms there and {1000 * there:.3g} ms on {found}"
    group.say(f"the CPU learns, because {times}; --device {found.type} takes the other")
    return CPU


def update_seconds(settings: LearnerSettings, device: torch.device, life: Life) -> float:
    """The median time of an update of a made-up batch, once kernels have been chosen and graphs recorded."""
    config, spec = settings.learner, settings.spec
    devices.set_up(device, max(config.threads, 1))
    process = NoProcess()
    runtime = LearnerRuntime(config, device, Quiet(), process, settings.max_policy_lag)
    update = make_algorithm(settings.algorithm).update(spec, runtime)
    tensors = {name: torch.from_numpy(array) for name, array in dummy_batch(spec, config.batch_items(spec)).items()}
    batch = to_batch(tensors, spec, device)
    warm = WARM_STEPS + 2 * TRIED_STEPS
    seconds: list[float] = []
    timed, until = 0, time.perf_counter() + BUDGET_SECONDS
    while len(seconds) < 2 or (timed < TIMED_UPDATES and time.perf_counter() < until and not life.stopping):
        timed += process.metrics.value("updates") > warm
        devices.synchronise(device)
        begun = time.perf_counter()
        update.update(batch)
        devices.synchronise(device)
        seconds.append(time.perf_counter() - begun)
        life.beat()
    return statistics.median(seconds[-max(timed, 1) :])


def _small(settings: LearnerSettings) -> bool:
    """Whether the policy is dense, as networks of vectors are, and has few weights."""
    parameters = list(make_algorithm(settings.algorithm).policy(settings.spec).parameters())
    dense = all(parameter.dim() <= 2 for parameter in parameters)
    return dense and sum(parameter.numel() for parameter in parameters) <= MOST_PARAMETERS
