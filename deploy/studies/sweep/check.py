"""Checks before the first trial: every key and every bound of a sweep, as `headrace up` would check them for a run."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from actors.trust import FLAG
from deploy.children import child_environment, last_error, python_command
from deploy.config import trust
from deploy.config.files import Layer, Tree, as_tree, lookup
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.launch import defaults, preflight, resources
from deploy.launch.probe import question, read_answer
from deploy.reporting.sinks import feeds
from deploy.studies.sweep.plan import Plan, nested
from deploy.studies.sweep.ranges import Range
from transport.experience import ExperienceSpec
from transport.run_dir import RunDir

NETWORKS_SECONDS = 300.0
# Supervisor, learner, replay, evaluator and an actor without a simulator. Measured: 405 MB by CartPole with two actors, 240 of
# them the learner's, some of whose pages another trial shared; the rest is for networks and simulators.
RUN_BYTES = 600_000_000


class Variation(NamedTuple):
    """Values for all keys, and where they are from, for a message."""

    values: dict[str, Any]
    stack: list[Layer]


class CheckedPlan(NamedTuple):
    """The plan with the ranges as Optuna needs them, and what its largest trial takes."""

    plan: Plan
    trial_bytes: float
    busy_processes: int  # those that keep a core busy


def check(plan: Plan) -> CheckedPlan:
    """Tries every choice and both ends of every range, with the lowest (or first) values of all other keys. Prints what `headrace
    up` prints about the environment. Raises ConfigError, EnvError, NoSpace: one line about the first mistake."""
    plan = check_keys(plan)
    found = list(variations(plan))
    first = resolve(found[0].stack)
    facts = preflight.try_environment(first)
    on_gpu = first.learner.device != "cpu" and _device(first) != "cpu"
    tried: list[tuple[RunConfig, ExperienceSpec]] = []
    for variation in found:
        with contextlib.redirect_stdout(io.StringIO()):  # that a batch is rounded is said when the trial begins
            config, spec = defaults.resolve_for(variation.stack, facts, on_gpu)
        if shortages := resources.find_shortages(config, spec, RunDir(plan.folder)):
            raise resources.NoSpace(f"{plan.path}: {'; '.join(shortages)}")
        tried.append((config, spec))
    check_networks(plan, tried)
    busy = max(config.actors.count + config.learner.processes for config, _ in tried)
    return CheckedPlan(plan, max(trial_bytes(config, spec) for config, spec in tried), busy)


def check_keys(plan: Plan) -> Plan:
    """Checks against the structs of the configuration alone, without starting any process. Returns the plan with ranges of whole
    numbers where a setting is a float turned into ranges of floats. Raises ConfigError."""
    search = dict(plan.search)
    for variation in variations(plan):
        if not plan.trusted:
            for layer in variation.stack[-2:]:
                trust.check_file(layer.values, plan.path, f"add {FLAG}")
        config = resolve(variation.stack)
        if not config.evaluator.enabled:
            raise ConfigError(f"{plan.path}: evaluator.enabled must be true: trials are judged by their evaluations")
        feeds.check(config.deploy)
        preflight.check_device_name(config.learner.device)
        tree = as_tree(config)
        search = {key: _fitted(key, found, lookup(tree, key), plan) for key, found in search.items()}
    return replace(plan, search=search)


def _fitted(key: str, found: Range, value: object, plan: Plan) -> Range:
    """The range in the numbers of the setting, whose value in some trial is `value`. Raises ConfigError."""
    if found.choices is not None or found.low is None or found.high is None:
        return found
    if isinstance(value, float) and found.whole and found.step is None:
        return Range(float(found.low), float(found.high), found.log)
    if isinstance(value, int) and not found.whole:
        raise ConfigError(f"{plan.path}: search.{key}: {key} is a whole number; write low, high and step without a point")
    return found


def variations(plan: Plan) -> Iterator[Variation]:
    """Every choice and both ends of every range, one key at a time; the other keys have their first value."""
    first = {key: found.ends[0] for key, found in plan.search.items()}
    yield Variation(first, _stack(plan, first))
    for key, found in plan.search.items():
        for value in found.ends[1:]:
            values = first | {key: value}
            yield Variation(values, _stack(plan, values))


def _stack(plan: Plan, values: dict[str, Any]) -> list[Layer]:
    """The layers of a trial: those of `headrace up --config`, the file in two, so that a message says which table is meant."""
    below = layers(plan.settings(values))[:-1]
    return [*below, Layer(str(plan.path), plan.given), Layer(f"{plan.path}: search", nested(values))]


def check_networks(plan: Plan, tried: Iterable[tuple[RunConfig, ExperienceSpec]]) -> None:
    """Builds the policy of every algorithm section, in one process with torch. Raises ConfigError."""
    questions = dict.fromkeys(question(config, spec) for config, spec in tried)
    for asked, answer in zip(questions, _ask_torch("cpu", list(questions)), strict=True):
        if answer["error"]:
            options: Tree = json.loads(asked)["algorithm"]
            chosen = {key: lookup({"algorithm": options}, key) for key in plan.search if key.startswith("algorithm.")}
            said = ", ".join(f"{key} = {value!r}" for key, value in chosen.items())
            raise ConfigError(f"{plan.path}: {answer['error']}{f' (with {said})' if said else ''}")


def _device(config: RunConfig) -> str:
    """The device that learners will find. Raises ConfigError."""
    return str(_ask_torch(config.learner.device, [])["device"])


def _ask_torch(device: str, questions: list[str]) -> Any:
    """The answers of learner/probe.py; without questions, what it says of the device. Raises ConfigError."""
    try:
        done = subprocess.run(
            python_command("learner.probe", device, "auto", "1"),
            input="".join(f"{question}\n" for question in questions),
            capture_output=True,
            text=True,
            timeout=NETWORKS_SECONDS,
            env=child_environment(OMP_NUM_THREADS="1"),
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"building the networks took more than {NETWORKS_SECONDS:.0f} s") from None
    found = [answer for answer in map(read_answer, done.stdout.splitlines()) if answer]
    if len(found) != len(questions) + 1:
        raise ConfigError(f"building the networks failed: {last_error(done)}")
    if "error" in found[0]:
        raise ConfigError(found[0]["error"])
    return found[1:] if questions else found[0]


def trial_bytes(config: RunConfig, spec: ExperienceSpec) -> float:
    """The memory that a run takes, roughly."""
    return RUN_BYTES + resources.replay_bytes(config, spec) + max(config.actors.count - 1, 0) * resources.ACTOR_BYTES
