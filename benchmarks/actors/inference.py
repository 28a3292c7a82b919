"""`headrace bench inference`: what acting costs by torch in each precision and by numpy, and what it does to the actions, on one
thread.

For every shipped network with convolutions the time of one act() for 1, 4, 8 and 16 environments, as actors call it, in turn.
Actors take numpy where a step of all their environments needs at most 16 million multiplications. "same action" is the share of
observations on which the greedy action is that of torch in float32; "difference" the mean distance of the network's outputs
(Q-values, logits, means) from those, in hundredths of their deviation; "refresh" the time to adopt new weights. Networks without
convolutions run in numpy and in float32 whatever is asked for.

Observations are what the policy itself meets. Weights are those of the exported files that --weights names
(`headrace export RUN FILE`), where one is of that environment, algorithm and network; otherwise they are random, and the notes
say so.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from actors.agent import Stack
from actors.envs.vector import VectorEnv
from benchmarks.common.processes import ONE_THREAD
from benchmarks.common.report import Report, make_parser, say
from benchmarks.common.settings import spec_of
from deploy.children import child_environment, python_command
from deploy.config.files import Tree
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from learner.algorithms.base import ActingPolicy, Algorithm, make_algorithm
from learner.devices.errors import DeviceError
from learner.inference.int8 import check
from learner.inference.module import infer_by, open_module
from learner.inference.program import Program
from learner.networks.base import PolicyModule
from learner.networks.describe import describe
from learner.saving.export import load
from learner.weights.checkpoint import CheckpointError, load_into
from transport.experience import Categorical, Columns, ExperienceSpec, bounded
from transport.text import reported

ROWS = (1, 4, 8, 16)
NUMPY = "numpy"  # in float32
WAYS = ("float32", "bfloat16", "int8", NUMPY)
OBSERVED = 1024  # observations on which answers are compared
CALL_SECONDS = 0.01  # that one measurement lasts, about
ENVIRONMENTS = 16
CASES: dict[str, Tree] = {
    "mario, dqn": {"env": {"id": "mario"}, "algorithm": {"name": "dqn"}},
    "mario, dqn, compact": {
        "env": {"id": "mario"},
        "algorithm": {"name": "dqn", "network": "compact", "filters": 0.5, "hidden": 256},
    },
    "mario, dqn, nature_batchnorm": {"env": {"id": "mario"}, "algorithm": {"name": "dqn", "network": "nature_batchnorm"}},
    "mario, ppo": {"env": {"id": "mario"}, "algorithm": {"name": "ppo"}},
    "snake, dqn, convolutions": {"env": {"id": "snake"}, "algorithm": {"name": "dqn", "network": "nature"}},
}


class Subject(NamedTuple):
    """A network to act by, and what it sees: observation[name] [OBSERVED, stack, *shape]."""

    algorithm: Algorithm
    network: PolicyModule
    spec: ExperienceSpec
    seen: Columns
    trained: bool


def subject(config: RunConfig, weights: list[Path]) -> Subject:
    """Builds it, with the first of `weights` that fits. Raises EnvError, CheckpointError."""
    spec = spec_of(config, "none")
    torch.manual_seed(0)
    algorithm = make_algorithm(config.algorithm)
    network, trained = algorithm.policy(spec), False
    assert isinstance(network, PolicyModule)
    for path in weights:
        exported = load(path)
        if exported.metadata.get("env") == config.env.id:
            with suppress(CheckpointError):  # of another network
                load_into(network, dict(exported.inference.weights))
                spec, trained = exported.spec, True
                break
    policy = algorithm.acting(spec, infer_by(network))
    return Subject(algorithm, network, spec, _met(config, spec, policy), trained)


def _met(config: RunConfig, spec: ExperienceSpec, policy: ActingPolicy) -> Columns:
    env, stack = VectorEnv(config.env, spec, ENVIRONMENTS, range(ENVIRONMENTS)), Stack(spec, ENVIRONMENTS)
    policy.assign(0, 0, ENVIRONMENTS, ENVIRONMENTS)
    stack.reset(env.reset())
    seen: list[Columns] = []
    while len(seen) * ENVIRONMENTS < OBSERVED:
        seen.append({name: rows.copy() for name, rows in stack.stacked.items()})
        step = env.step(bounded(spec, policy.act(stack.stacked, {}, "explore").action))
        stack.push(step.observation, step.terminated | step.truncated)
    env.close()
    return {name: np.concatenate([columns[name] for columns in seen]) for name in seen[0]}


class Way:
    """A way to act: inference by torch in one precision, or by numpy, and the policy over it."""

    def __init__(self, one: Subject, name: str) -> None:
        """Raises DeviceError."""
        network = one.network
        self.inference = Program(describe(network)) if name == NUMPY else open_module(copy.deepcopy(network), name)
        self.inference.load({key: value.numpy() for key, value in network.state_dict().items()})
        self.policy = one.algorithm.acting(one.spec, self.inference)

    def answers(self, observation: Columns) -> np.ndarray:
        """The network's outputs."""
        return self.inference(observation, {})[0]


def compare(report: Report, case: str, policies: dict[str, Way], one: Subject) -> None:
    """Adds how far each is from the first."""
    answers = {name: _answers(policy, one.seen) for name, policy in policies.items()}
    exact = answers["float32"]
    for name, found in list(answers.items())[1:]:
        if isinstance(one.spec.action, Categorical):
            same = float((found.argmax(1) == exact.argmax(1)).mean())
            report.add(f"{case}, actions", f"{name} same action", "%", [100 * same])
        report.add(f"{case}, actions", f"{name} difference", "%", [float(100 * np.abs(found - exact).mean() / exact.std())])
        if "td" in one.algorithm.figures and isinstance(one.spec.action, Categorical):
            report.add(f"{case}, actions", f"{name} Q off", "on average", [float(np.abs(found - exact).mean())])


def _answers(policy: Way, seen: Columns) -> np.ndarray:
    count, rows = len(next(iter(seen.values()))), max(ROWS)
    parts = [policy.answers({name: all_[at : at + rows] for name, all_ in seen.items()}) for at in range(0, count, rows)]
    return np.concatenate([part.copy() for part in parts])


def clock(report: Report, case: str, policies: dict[str, Way], seen: Columns, runs: int) -> None:
    """Adds what an act() takes in each, in turn, in µs of processor time."""
    for rows in ROWS:
        observation = {name: np.ascontiguousarray(all_[:rows]) for name, all_ in seen.items()}
        taken: dict[str, list[float]] = {name: [] for name in policies}
        calls = {name: max(int(CALL_SECONDS / _seconds(policy, observation, 20)), 5) for name, policy in policies.items()}
        for _ in range(runs):
            for name, policy in policies.items():
                taken[name].append(1e6 * _seconds(policy, observation, calls[name]))
        medians = {name: report.add(f"{case}, {rows} rows", name, "µs", times) for name, times in taken.items()}
        for name in list(medians)[1:]:
            report.ratio(f"{case}, {rows} rows", f"act() in {name}, speed", "float32", medians["float32"] / medians[name])
    for name, policy in policies.items():
        weights = {key: value.copy() for key, value in policy.inference.weights.items()}
        began = time.process_time()
        for _ in range(runs):
            policy.inference.load(weights)
        report.add(f"{case}, refresh", name, "ms", [1e3 * (time.process_time() - began) / runs])


def _seconds(policy: Way, observation: Columns, calls: int) -> float:
    """Seconds of processor time for one act()."""
    began = time.process_time()
    for _ in range(calls):
        policy.policy.act(observation, {}, "explore")
    return (time.process_time() - began) / calls


def main(arguments: list[str] | None = None) -> int:
    """Measures and prints."""
    parser = make_parser("inference", __doc__)
    parser.add_argument("--case", action="append", choices=CASES, help="one of the networks; may be given again (default: all)")
    parser.add_argument("--weights", action="append", type=Path, default=[], metavar="FILE", help="an exported policy; again")
    parser.add_argument("--runs", type=int, default=25, help="measurements of each; the median is reported (default 25)")
    options = parser.parse_args(arguments)
    if any(os.environ.get(name) != value for name, value in ONE_THREAD.items()):
        again = python_command("benchmarks.actors.inference", *(sys.argv[1:] if arguments is None else arguments))
        return subprocess.run(again, env=child_environment(**ONE_THREAD)).returncode  # numpy reads them when it is imported
    torch.set_num_threads(1)
    report = Report("inference")
    report.notes.append("one thread; µs of processor time for an act(), median (least-most)")
    try:
        check()
        for case in reported(list(options.case or CASES), "networks", say):
            one = subject(resolve(layers(CASES[case], None)), options.weights)
            report.notes.append(f"{case}: {'trained' if one.trained else 'random'} weights")
            policies = {name: Way(one, name) for name in WAYS}
            compare(report, case, policies, one)
            clock(report, case, policies, one.seen, options.runs)
    except (CheckpointError, DeviceError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 2
    report.print(options.json)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
