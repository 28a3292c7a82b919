"""`headrace bench updates`: what one update of a small network costs on a CPU, by engine and beside others.

Sides, each in one thread, in processor time, in blocks that take turns in alternating order; the median of the rounds counts:

  numpy, torch   Headrace's update by either engine (learner.engine)
  bare loop      the same arithmetic in torch as one writes it for a single experiment (benchmarks/by_hand/)
  products       the matrix products of forward and backward passes alone, by numpy's BLAS
  JAX, a jit a step; JAX, a scan     the same written in JAX, each step compiled, or the whole update
                 (`python benchmarks/peers/make.py jax` makes the environment; left out where there is none)

A figure is the time of one minibatch or batch. PPO and PQN go 20 times over a rollout of 8 minibatches, the preparation of the
rollout included, which is then a small part; `rollout` is a whole update of CartPole's preset: 5 epochs of 8 minibatches.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch

from benchmarks.by_hand.dqn import DqnLoop
from benchmarks.by_hand.ppo import PpoLoop
from benchmarks.by_hand.pqn import PqnLoop
from benchmarks.by_hand.sac import SacLoop
from benchmarks.common.processes import ONE_THREAD, CaseFailed
from benchmarks.common.report import Report, command_note, make_parser, say
from benchmarks.device.updates import made_up
from benchmarks.peers.make import python_of
from deploy.children import ROOT, child_environment
from learner.algorithms.base import Algorithm, find_algorithm, join
from learner.config import LearnerConfig
from learner.devices.capabilities import set_up
from learner.engine.runtime import EngineRuntime
from learner.feed.batches import to_batch
from learner.feed.views import views
from learner.updates.runtime import LearnerRuntime
from transport.experience import Categorical, Columns, Continuous, ExperienceSpec, observed

TORCH, NUMPY, BARE, PRODUCTS = "torch", "numpy", "bare loop", "products"
JAX = {"step": "JAX, a jit a step", "scan": "JAX, a scan"}
LOOPS = {"dqn": DqnLoop, "ppo": PpoLoop, "pqn": PqnLoop, "sac": SacLoop}
CHUNK = 64  # rows
CPU = torch.device("cpu")
Call = Callable[[], object]


class Case(NamedTuple):
    """`batch`: items of a step. `passes`: epochs and minibatches of a rollout. `whole`: a step is the whole update."""

    name: str
    algorithm: str
    hidden: int
    batch: int
    inputs: int
    actions: int
    options: dict[str, Any] = {}  # noqa: RUF012
    passes: tuple[int, int] = (20, 8)
    whole: bool = False

    @property
    def rollouts(self) -> bool:
        return self.algorithm in ("ppo", "pqn")

    @property
    def steps(self) -> int:
        """Steps that one call of an update counts as."""
        return self.passes[0] * self.passes[1] if self.rollouts and not self.whole else 1

    @property
    def items(self) -> int:
        """Items of a batch of replay's."""
        return self.batch * self.passes[1] if self.rollouts else self.batch

    def made(self) -> tuple[Algorithm, ExperienceSpec, LearnerConfig]:
        Algorithm_ = find_algorithm(self.algorithm)
        passes = dict(zip(("n_epochs", "minibatches"), self.passes, strict=True)) if self.rollouts else {}
        algorithm = Algorithm_(msgspec.convert({"hidden": self.hidden, **passes, **self.options}, Algorithm_.Config))
        continuous = self.algorithm == "sac"
        action = Continuous((-1.0,) * self.actions, (1.0,) * self.actions) if continuous else Categorical(self.actions)
        env = ExperienceSpec((observed("observation", (self.inputs,), "<f4"),), action, CHUNK)
        learner = {"batch_size": self.items, "device": "cpu", "learning_rate": 1e-4, "max_grad_norm": 0.5}
        return algorithm, join(env, algorithm.needs(env)), msgspec.convert(learner, LearnerConfig)


CASES = (
    *(Case(f"PPO 2x64, {batch}", "ppo", 64, batch, 4, 2) for batch in (64, 256, 1024)),
    Case("PPO 2x256, 256", "ppo", 256, 256, 4, 2),
    Case("PPO 2x64, rollout", "ppo", 64, 256, 4, 2, passes=(5, 8), whole=True),
    Case("SAC 2x64, 256", "sac", 64, 256, 3, 1),
    Case("SAC 2x256, 256, 3 inputs", "sac", 256, 256, 3, 1),
    Case("SAC 2x256, 256, 17 inputs", "sac", 256, 256, 17, 6),
    Case("DQN 2x128, 128", "dqn", 128, 128, 8, 4, {"n_step": 5}),
    Case("DQN 2x256, 256", "dqn", 256, 256, 8, 4),
    Case("PQN 2x128, 128", "pqn", 128, 128, 8, 4),
)


def by_torch(case: Case, arrays: Columns) -> Call:
    algorithm, spec, config = case.made()
    update = algorithm.update(spec, LearnerRuntime(config, CPU))
    batch = to_batch({name: torch.from_numpy(array) for name, array in arrays.items()}, spec, CPU)
    return partial(update.update, batch)


def by_numpy(case: Case, arrays: Columns) -> Call:
    algorithm, spec, config = case.made()
    update = algorithm.array_update(spec, EngineRuntime(config))
    assert update is not None
    return partial(update.update, views(arrays, spec))


def bare(case: Case, arrays: Columns) -> Call:
    algorithm, spec, config = case.made()
    return LOOPS[case.algorithm](config, algorithm.config, spec, [arrays]).update  # type: ignore[abstract]


def products(case: Case) -> Call:
    """The products of all passes of one step, each over arrays of its own size."""
    random = np.random.default_rng(0)
    shapes = [shape for sizes, *passes in networks(case) for shape in shapes_of(case.batch, sizes, *passes)]
    shapes *= case.passes[0] * case.passes[1] if case.whole else 1
    made = {shape: [random.random(sides, np.float32) for sides in (shape[:2], shape[1:], shape[::2])] for shape in shapes}
    calls = [partial(np.matmul, *made[shape][:2], out=made[shape][2]) for shape in shapes]

    def call() -> None:
        for each in calls:
            each()

    return call


def networks(case: Case) -> list[tuple[tuple[int, ...], int, int, int]]:
    """Each network's layers, and how often a step has it forwards, gradients by its parameters, and by its inputs."""
    inner = (case.hidden, case.hidden)
    if case.algorithm == "sac":
        policy, critic = (case.inputs, *inner, 2 * case.actions), (case.inputs + case.actions, *inner, 1)
        return [(policy, 2, 1, 0), (critic, 6, 2, 2)]
    if case.algorithm == "ppo":
        return [((case.inputs, *inner, outputs), 1, 1, 0) for outputs in (case.actions, 1)]
    return [((case.inputs, *inner, 1 + case.actions), 3 if case.algorithm == "dqn" else 1, 1, 0)]


def shapes_of(rows: int, sizes: tuple[int, ...], forward: int, backward: int, by_input: int) -> Iterator[tuple[int, int, int]]:
    """(m, k, n) of every product [m, k] x [k, n]. Gradients by the first layer's input are needed `by_input` times alone."""
    for layer, (before, after) in enumerate(pairwise(sizes)):
        yield from [(rows, before, after)] * forward
        yield from [(before, rows, after)] * backward
        yield from [(rows, after, before)] * (by_input + (backward if layer else 0))


class Jax:
    """A process that has JAX; it measures a block when it is asked to."""

    def __init__(self, python: str) -> None:
        one = {"XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1", "JAX_PLATFORMS": "cpu"}
        command = [python, str(ROOT / "benchmarks" / "by_hand" / "jax_loops.py")]
        environment = child_environment(python, **ONE_THREAD, **one)
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)
        self.version = str(self._answer()["version"])

    def _answer(self) -> dict[str, Any]:
        line = self._process.stdout.readline() if self._process.stdout else ""
        if not line:
            raise CaseFailed(f"JAX ended with {self._process.wait()}: see above")
        return dict(json.loads(line))

    def block(self, case: Case, way: str, seconds: float) -> float:
        """Milliseconds of the processor that a step takes. Raises CaseFailed."""
        assert self._process.stdin is not None
        options = msgspec.to_builtins(case.made()[0].config)
        asked = case._asdict() | {"options": options, "steps": case.steps, "way": way, "seconds": seconds}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return float(self._answer()["ms"])

    def close(self) -> None:
        self._process.communicate()


@contextmanager
def jax(python: str) -> Iterator[Jax | None]:
    """Within, the process is there, if there is such a Python."""
    if not Path(python).is_file():
        yield None
        return
    process = Jax(python)
    try:
        yield process
    finally:
        process.close()


def block(call: Call, steps: int, seconds: float) -> float:
    """Milliseconds of the processor that a step takes, over at least `seconds` of it."""
    begun, calls = time.process_time(), 0
    while not calls or time.process_time() < begun + seconds:
        call()
        calls += 1
    return 1e3 * (time.process_time() - begun) / (calls * steps)


def sides(case: Case, other: Jax | None) -> dict[str, Callable[[float], float]]:
    """What measures a block of each side, given its length in seconds; all have run once."""
    _, spec, config = case.made()
    arrays = made_up(spec, config.batch_items(spec))
    calls = {NUMPY: by_numpy(case, arrays), TORCH: by_torch(case, arrays), BARE: bare(case, arrays)}
    found: dict[str, Callable[[float], float]] = {name: partial(block, call, case.steps) for name, call in calls.items()}
    found[PRODUCTS] = partial(block, products(case), 1)
    if other is not None:
        found |= {name: partial(other.block, case, way) for way, name in JAX.items()}
    for measure in found.values():
        measure(0.0)
    return found


def measure(case: Case, other: Jax | None, report: Report, rounds: int, seconds: float) -> None:
    """Adds the figures of a case, and their ratios: the medians of the rounds' own."""
    measures = sides(case, other)
    runs: dict[str, list[float]] = {name: [] for name in measures}
    for turn in range(rounds):
        for name in list(measures)[:: -1 if turn % 2 else 1]:
            runs[name].append(measures[name](seconds))
    for name, values in runs.items():
        report.add(case.name, name, "ms", values)
    for name, values in runs.items():
        if name != NUMPY:
            ratios = [one / other for one, other in zip(runs[NUMPY], values, strict=True)]
            report.ratio(case.name, NUMPY, name, statistics.median(ratios))
    say(f"{case.name}: " + ", ".join(f"{name} {statistics.median(values):.3f}" for name, values in runs.items()))


def main(arguments: list[str] | None = None) -> int:
    """Parses the command line and measures."""
    parser = make_parser("updates", __doc__)
    parser.add_argument("--cases", nargs="+", metavar="WORD", default=[""], help="those whose names have one of the words")
    parser.add_argument("--rounds", type=int, default=5, help="blocks of each side; the median counts (default 5)")
    parser.add_argument("--seconds", type=float, default=0.5, help="processor time of a block (default 0.5)")
    parser.add_argument("--quick", action="store_true", help="one short block of each")
    parser.add_argument(
        "--jax-python", default=python_of("jax"), metavar="PATH", help="a Python that has JAX (default %(default)s)"
    )
    options = parser.parse_args(arguments)
    chosen = [case for case in CASES if any(word.lower() in case.name.lower() for word in options.cases)]
    if options.rounds < 1 or options.seconds <= 0 or not chosen:
        parser.error("--rounds and --seconds must be greater than 0" if chosen else f"--cases: {[case.name for case in CASES]}")
    if options.quick:
        options.rounds, options.seconds = 1, 0.01
    return run(options, chosen, command_note("updates", arguments, [options.jax_python]))


def run(options: argparse.Namespace, chosen: list[Case], note: str) -> int:
    set_up(CPU, 1)
    report = Report("updates")
    with jax(options.jax_python) as other:
        report.notes = [note, f"JAX {other.version}" if other else f"no JAX: there is no {options.jax_python}"]
        for case in chosen:
            measure(case, other, report, options.rounds, options.seconds)
    report.print(options.json)
    return 0


if __name__ == "__main__":
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):  # libraries read them when they are loaded
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.learner.updates", *sys.argv[1:]], os.environ | ONE_THREAD)
    sys.exit(main())
