"""Tries whether an update takes less time by numpy or by torch, once on each machine; the answer is remembered.

The file in the user's cache has an answer for each machine, version and shape of an update. Where it has one, no torch is
imported.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from contextlib import suppress
from importlib import metadata
from typing import Any

import msgspec
import numpy as np

from learner.algorithms.base import Algorithm
from learner.config import LearnerConfig, LearnerSettings
from learner.engine.runtime import EngineRuntime
from learner.engine.threads import limit_threads
from learner.feed.views import views
from learner.updates.base import Update
from learner.updates.process import NoProcess
from replay.table.layout import layout
from transport.experience import Columns, ExperienceSpec
from transport.files.documents import Damaged, read_document
from transport.files.writing import write_atomically
from transport.system import cache_folder, core_count, processor

FILE, MOST_ANSWERS = "engines.json", 200
STEPS = 4  # of the optimiser, in a round of one library
ROUNDS, SECONDS = 5, 0.4  # after so many seconds no further round begins
PACKAGES = ("headrace", "numpy", "torch")


class FewSteps(NoProcess):
    """A process that is asked to stop after some steps, so that the many passes over a rollout are tried by a few."""

    begun = 0.0

    @property
    def steps(self) -> float:
        return self.metrics.value("updates") - self.begun

    @property
    def stopping(self) -> bool:  # type: ignore[override]
        return self.steps >= STEPS

    def begin(self) -> None:
        self.begun = self.metrics.value("updates")


def numpy_is_faster(
    algorithm: Algorithm,
    settings: LearnerSettings,
    spec: ExperienceSpec,
    say: Callable[[str], None],
    measure: Callable[[Algorithm, LearnerConfig, ExperienceSpec], float] | None = None,
) -> bool:
    """Also logs the answer. `measure`: torch's seconds for a step as a multiple of numpy's."""
    path, key = cache_folder() / FILE, _key(settings, spec)
    known = _answers()
    ratio = known.pop(key, 0.0)
    remembered = bool(ratio)
    if not remembered:
        ratio = (measure or torch_by_numpy)(algorithm, settings.learner, spec)
        answers = dict(list(known.items())[1 - MOST_ANSWERS :]) | {key: ratio}
        with suppress(OSError):  # with a full or read-only disk the next learner tries again
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, msgspec.json.encode(answers))
    how = "as tried before" if remembered else "tried just now"
    say(f"a step takes torch {ratio:.2f} times as long as numpy, {how}; --learner.engine takes the other")
    return ratio > 1


def torch_by_numpy(algorithm: Algorithm, config: LearnerConfig, spec: ExperienceSpec) -> float:
    """Measures it, on a batch of ones."""
    import torch

    from learner.devices.capabilities import fork_random, set_up
    from learner.feed.batches import to_batch
    from learner.updates.runtime import LearnerRuntime

    cpu, arrays = torch.device("cpu"), dummy_batch(spec, config.batch_items(spec))
    set_up(cpu, max(config.threads, 1))
    limit_threads(max(config.threads, 1))
    processes = FewSteps(), FewSteps()
    with fork_random(cpu):
        ours = algorithm.array_update(spec, EngineRuntime(config, process=processes[0]))
        assert ours is not None
        theirs = algorithm.update(spec, LearnerRuntime(config, cpu, process=processes[1]))
        tensors = to_batch({name: torch.from_numpy(array) for name, array in arrays.items()}, spec, cpu)
        sides: list[tuple[Update, Any, FewSteps]] = [(ours, views(arrays, spec), processes[0]), (theirs, tensors, processes[1])]
        until, seconds = time.perf_counter() + SECONDS, [np.inf, np.inf]
        for turn in range(1 + ROUNDS):
            found = [_seconds(*side) for side in sides]
            if turn:  # the first round makes buffers
                seconds = list(map(min, seconds, found))
            if turn and time.perf_counter() > until:
                break
    return seconds[1] / seconds[0]


def _seconds(update: Update, batch: Any, process: FewSteps) -> float:
    """Of a step."""
    process.begin()
    begun = time.perf_counter()
    while not process.stopping:
        update.update(batch)
    return (time.perf_counter() - begun) / process.steps


def dummy_batch(spec: ExperienceSpec, items: int) -> Columns:
    """A batch as replay would gather it: every observation 1, which as a mask allows each action; the rest 0."""
    arrays: Columns = {name: np.zeros(shape, dtype) for name, shape, dtype in layout(spec, items).arrays}
    for name, array in arrays.items():
        if name.startswith("observation/"):
            array[:] = 1
    arrays["probability"][:] = 1
    if spec.unit == "transitions":
        arrays["steps"][:] = spec.n_step
        arrays["observation_index"][:] = np.arange(spec.stack)
        arrays["next_index"][:] = np.arange(spec.stack) + spec.n_step
    else:
        arrays["length"][:] = spec.chunk_length
        arrays["valid"][:] = 1
        arrays["episode_step"][:] = np.arange(arrays["episode_step"].shape[1])
    return arrays


def _answers() -> dict[str, float]:
    try:
        return read_document(cache_folder() / FILE, dict[str, float])
    except (OSError, Damaged):
        return {}


def _key(settings: LearnerSettings, spec: ExperienceSpec) -> str:
    """Names the machine, the versions and the shape of an update."""
    config, versions = settings.learner, {}
    for package in PACKAGES:
        with suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    shape = spec.digest, sorted(settings.algorithm.items()), config.batch_size, config.threads
    found = repr((processor(), core_count(), sorted(versions.items()), shape))
    return hashlib.blake2b(found.encode(), digest_size=16).hexdigest()
