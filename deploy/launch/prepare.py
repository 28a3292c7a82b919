"""`headrace up`: from what was typed to a run's folder that a supervisor can be put in charge of."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from actors.envs.base import builtin_name
from actors.envs.errors import EnvError
from actors.envs.make import env_section, open_family, options_table
from actors.envs.preflight import Facts, preflight
from deploy import runs
from deploy.children import check_actor_python, child_environment, python_command
from deploy.config.algorithm import builtin_algorithms, needs
from deploy.config.checks import changes_refused_on_resume, validate
from deploy.config.errors import ConfigError
from deploy.config.files import Layer, Tree, write_config
from deploy.config.layers import layers, load_run_config, resolve
from deploy.config.run import RunConfig
from deploy.launch import access
from deploy.launch.probe import Probe
from deploy.reporting import sinks
from deploy.reporting.status import algorithm_name
from deploy.supervision.liveness import settled_hang_seconds
from deploy.supervision.reports import own_cores
from learner.algorithms.base import ActionKind, join, make_algorithm
from learner.inference.base import PolicyDescription, read_description
from learner.weights.errors import CheckpointError
from replay.table.layout import capacity_chunks, layout, overhead_bytes, slot_bytes
from transport.experience import Categorical, ExperienceSpec, SpecError, read_spec, write_spec
from transport.names import nearest
from transport.run_dir import RunDir, write_atomically

LEAST_DISK_BYTES = 200_000_000
MOST_THREADS = 16  # of a learner on the CPU, unless more are asked for
COMPRESSION = 4  # of image columns on disk, at the least that is usual: emulators and simple scenes give 10 and more
LAST_RECORD_BYTES = 65_536  # of a metrics file: more than one record takes
SHARED_MEMORY = Path("/dev/shm")
ANEW = "use --fresh to start anew or --run for another run"
DEVICES = ("auto", "cpu", "cuda", "directml", "xpu", "mps")


class NoSpace(RuntimeError):
    """This machine has clearly not enough of something; the text says of what and what to change."""


@dataclass(frozen=True)
class Request:
    """What the user asked for."""

    flags: Tree
    file: Path | None = None
    name: str | None = None
    fresh: bool = False
    resume: bool = False
    preset: str | None = None


@dataclass(frozen=True)
class Launch:
    """A checked run that has not been written yet."""

    run: RunDir
    config: RunConfig
    spec: ExperienceSpec
    spaces: dict[str, Any]
    policy: PolicyDescription
    resumed: bool
    fresh: bool

    def write(self) -> None:
        """Writes the files that every process of the run reads. To be called under the run's lock."""
        self.run.create()
        write_atomically(self.run.config, write_config(self.config))
        write_atomically(self.run.spec, write_spec(self.spec))
        write_atomically(self.run.spaces, msgspec.json.encode(self.spaces))
        write_atomically(self.run.policy, msgspec.json.encode(self.policy))

    def resume_notice(self) -> str:
        """What a resumed run goes on with, and what it does not."""
        steps = runs.read_steps(self.run)
        newest = max(self.run.checkpoints.glob("epoch-*.safetensors"), default=None)
        learner = (
            f"the learner continues from checkpoints/{newest.name}"
            if newest
            else "no checkpoint was written, so the learner begins anew"
        )
        items = _items_held(self.run)
        if self.spec.unit == "rollouts":
            replay = "rollouts are collected anew"
        elif not (self.config.replay.durable and any(self.run.segments.glob("*.segment"))):
            replay = "the replay buffer starts empty"
        elif items > self.config.replay.capacity:
            replay = f"the newest {self.config.replay.capacity:,} of {items:,} items are restored with their priorities"
        else:
            replay = f"{items:,} items and all priorities are restored" if items else "what replay holds on disk is restored"
        return f"resuming run {self.run.name} after {steps:,} steps: {learner}; {replay}"


def _items_held(run: RunDir) -> int:
    """What replay held when it last measured; 0 when it has not said."""
    try:
        with open(run.metrics("replay"), "rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LAST_RECORD_BYTES, 0))
            return int(json.loads(file.read().splitlines()[-1])["items"])
    except (OSError, ValueError, KeyError, IndexError):
        return 0


def prepare(request: Request) -> Launch:
    """Resolves and checks everything that can be checked before a process is launched.

    Raises ConfigError, EnvError, AlreadyUp, Refused, KeysError, NoSpace: each is one line.
    """
    run = runs.run_dir(request.name or _default_name(request))
    if runs.is_up(run):
        raise runs.AlreadyUp(run, runs.supervisor_pid(run))
    stopped = run.config.exists() and not request.fresh
    if request.resume and not stopped:
        raise ConfigError(f"there is no run {run.name} to resume; leave --resume out to start it")
    stack = layers(request.flags, request.file, run.config if stopped else None, request.preset)
    config = resolve(stack)
    if builtin_name(config.env.id):
        config = _with_options(stack, options_table(open_family(config.env).pin_options()))
    if stopped:
        _check_resume(run, config)
    access.check(run, config)
    sinks.check(config.deploy.sinks, config.deploy.sink_options)
    _check_device_name(config.learner.device)
    check_actor_python(config.deploy.actor_python)
    _check_precision(config)
    if config.learner.weights and not Path(config.learner.weights).is_file():
        raise ConfigError(f"--learner.weights: there is no file {config.learner.weights}")
    os.environ.update(child_environment())  # for the device probe
    with Probe(config.learner) as probe:
        facts = _check_environment(config)
        on_gpu = probe.device()["device"] != "cpu"
        spec = _with_algorithm(facts, config)
        config = _with_options(stack, facts.options, on_gpu, spec)
        config = fit_rollouts(settle_threads(settle_patience(config, facts.slowest_seconds), spec, on_gpu), spec)
        _check_spec(run, config, spec, stopped)
        policy = probe.policy(config, spec)
    _check_policy(run, policy, stopped)
    shortages = find_shortages(config, spec, run)
    if shortages:
        raise NoSpace("; ".join(shortages))
    if little := find_little_disk(config, spec, run):
        print(little, flush=True)
    return Launch(run, config, spec, facts.spaces, policy, stopped, request.fresh)


def _with_options(stack: list[Layer], options: Tree, on_gpu: bool = False, spec: ExperienceSpec | None = None) -> RunConfig:
    """The configuration with the options of its environment as the run's config.toml is to have them."""
    stack.append(Layer("what --env names", {"env": options}))
    return resolve(stack, on_gpu, spec)


def _with_algorithm(facts: Facts, config: RunConfig) -> ExperienceSpec:
    """The run's spec: the environment's, and what the algorithm wants besides. Raises ConfigError."""
    wanted = needs(config, facts.spec)
    if wanted.goals and not facts.goals:
        wanted = msgspec.structs.replace(wanted, goals=0)
    if wanted.goals and facts.goal_complaint:
        raise ConfigError(f"{config.env.id}: {facts.goal_complaint}")
    return join(facts.spec, wanted)


def settle_patience(config: RunConfig, slowest_seconds: float) -> RunConfig:
    """Makes a number of deploy.hang_seconds 0."""
    deploy = config.deploy
    if deploy.hang_seconds:
        return config
    settled = settled_hang_seconds(slowest_seconds)
    return msgspec.structs.replace(config, deploy=msgspec.structs.replace(deploy, hang_seconds=settled))


def settle_threads(config: RunConfig, spec: ExperienceSpec, on_gpu: bool) -> RunConfig:
    """Makes a number of learner.threads 0: on a CPU, for images, one for each core that the actors' threads and replay leave.

    One where an accelerator computes, or where there is too little to compute to be worth dividing: measured, an update of a
    small network takes longer with a second thread than with one, the Nature network's 0.6 of the time.
    """
    if config.learner.threads:
        return config
    left = len(own_cores()) - config.actors.count * config.actors.threads - 1
    images = any(field.dtype == "|u1" and len(field.shape) > 1 for field in spec.fields)
    threads = min(max(left, 1), MOST_THREADS) if images and not on_gpu else 1
    return msgspec.structs.replace(config, learner=msgspec.structs.replace(config.learner, threads=threads))


def fit_rollouts(config: RunConfig, spec: ExperienceSpec) -> RunConfig:
    """Where whole rollouts are learned from: a batch is a multiple of what all environments collect in a chunk each, or some
    would wait for the next one and be too old by then. Raises ConfigError where another setting does not fit that."""
    if spec.unit != "rollouts":
        return config
    environments, processes = config.actors.count * config.actors.envs_per_actor, config.learner.processes
    wave, wanted = environments * spec.chunk_length, config.learner.batch_size
    step = math.lcm(wave, processes * spec.chunk_length) // processes  # the batches of all processes are one to the actors
    size = -(-wanted // step) * step
    if size == wanted:
        return config
    together = f", {processes} processes together" if processes > 1 else ""
    print(
        f"rollout batches have {size:,} steps instead of {wanted:,}: whole chunks of {spec.chunk_length}, as many of each of the "
        f"{environments} environments{together}"
    )
    fitted = msgspec.structs.replace(config, learner=msgspec.structs.replace(config.learner, batch_size=size))
    if complaints := validate(fitted):
        raise ConfigError("; ".join(complaints))
    return fitted


def _default_name(request: Request) -> str:
    config = resolve(layers(request.flags, request.file))
    return runs.default_name(config.env.id, algorithm_name(config))


def _check_resume(run: RunDir, config: RunConfig) -> None:
    changed = changes_refused_on_resume(load_run_config(run.config), config)
    if changed:
        raise ConfigError(f"run {run.name} was made with another {', '.join(changed)}; {ANEW}")
    done = runs.read_steps(run)
    if config.total_steps and done >= config.total_steps:
        raise ConfigError(f"run {run.name} has done {done:,} of {config.total_steps:,} steps; raise --total-steps, or {ANEW}")


def _check_device_name(name: str) -> None:
    if name.partition(":")[0] not in DEVICES:
        raise ConfigError(f"--device: no device is called {name!r}; {nearest(name, DEVICES)}")


def _check_precision(config: RunConfig) -> None:
    """Raises ConfigError where actors could not act in int8: which processors and torches can is known only by trying."""
    if config.actors.precision != "int8":
        return
    python = config.deploy.actor_python
    command, environment = python_command("learner.inference.int8", python=python), child_environment(python)
    done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode:
        said = (done.stdout or done.stderr).strip().splitlines() or [f"exit {done.returncode}"]
        raise ConfigError(f"--actors.precision: {said[-1]}")


def _check_environment(config: RunConfig) -> Facts:
    print(f"checking {config.env.id} … ", end="", flush=True)
    began, python = time.monotonic(), config.deploy.actor_python
    try:
        command, environment = python_command("actors.envs.preflight", python=python), child_environment(python)
        facts = preflight(config.env, config.replay.codec, command, environment)
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"ok: {describe_spec(facts.spec)}, {time.monotonic() - began:.1f} s", flush=True)
    return facts


def _check_spec(run: RunDir, config: RunConfig, spec: ExperienceSpec, stopped: bool) -> None:
    algorithm = make_algorithm(config.algorithm)
    kind: ActionKind = "categorical" if isinstance(spec.action, Categorical) else "continuous"
    if kind not in algorithm.actions:
        able = [name for name, found in builtin_algorithms().items() if kind in found.actions]
        raise ConfigError(
            f"{config.env.id} has {describe_actions(spec)}, and --algo {config.algorithm.name} has no {kind} actions: "
            f"--algo {' or '.join(able)}"
        )
    try:
        capacity_chunks(spec, config.replay, _lent(config, spec))
    except ValueError as error:
        raise ConfigError(str(error)) from error
    try:
        recorded = read_spec(run.spec.read_bytes()) if stopped and run.spec.exists() else spec
    except SpecError as error:
        raise ConfigError(f"run {run.name}: {error}") from error
    if recorded.digest != spec.digest:
        raise ConfigError(
            f"run {run.name} recorded other experience than {config.env.id} gives now "
            f"(observation, action, stack, n_step or chunk); {ANEW}"
        )


def _check_policy(run: RunDir, policy: PolicyDescription, stopped: bool) -> None:
    """Raises ConfigError where a stopped run's weights are those of another network."""
    if not (stopped and run.policy.is_file()):
        return
    try:
        before = read_description(run.policy.read_bytes())
    except CheckpointError as error:
        raise ConfigError(f"{run.policy}: {error}; {ANEW}") from error
    if before.tensors != policy.tensors:
        raise ConfigError(f"run {run.name} was made with another network than its code builds now; {ANEW}")


def describe_spec(spec: ExperienceSpec) -> str:
    """What an agent sees and does, in a few words: `Box(4) -> 2 actions`."""
    parts = []
    for field in spec.fields:
        size = "x".join(map(str, field.shape)) or "1"
        parts.append(f"Box({size})" if len(spec.fields) == 1 else f"{field.name}({size})")
    stack = f" x {spec.stack}" if spec.stack > 1 else ""
    return f"{' + '.join(parts)}{stack} -> {describe_actions(spec)}"


def describe_actions(spec: ExperienceSpec) -> str:
    """`2 actions`, or `1 continuous action`."""
    number, kind = (spec.action.n, "") if isinstance(spec.action, Categorical) else (len(spec.action.low), "continuous ")
    return f"{number} {kind}action{'' if number == 1 else 's'}"


def _lent(config: RunConfig, spec: ExperienceSpec) -> int:
    return config.learner.leased(spec)


def find_shortages(config: RunConfig, spec: ExperienceSpec, run: RunDir) -> list[str]:
    """What this machine clearly has too little of; each with the setting that would help."""
    lent = _lent(config, spec)
    ring = capacity_chunks(spec, config.replay, lent) * slot_bytes(spec)
    wanted = ring + overhead_bytes(spec, config.replay, lent)
    memory = psutil.virtual_memory().available
    folder, disk = _disk(run)
    batch = layout(spec, lent).slot_bytes
    shared = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else None
    checks = [
        (wanted <= memory,
         f"replay wants {_gigabytes(wanted)} but {_gigabytes(memory)} of memory are free; "
         "lower --replay.capacity or --replay.budget-bytes"),
        (disk >= LEAST_DISK_BYTES,
         f"{folder} has {_gigabytes(disk)} free; a run needs {_gigabytes(LEAST_DISK_BYTES)} at least"),
        (shared is None or batch <= shared,
         f"batches want {_gigabytes(batch)} of shared memory but {SHARED_MEMORY} has {_gigabytes(shared or 0)} free; "
         "lower --learner.batch-size, --learner.prefetch or --learner.processes, or give the container more (--shm-size)"),
    ]  # fmt: skip
    return [complaint for enough, complaint in checks if not enough]


def find_little_disk(config: RunConfig, spec: ExperienceSpec, run: RunDir) -> str:
    """A line when the segment log may fill the disk, which costs a restart its experience but not the run; else nothing."""
    if not config.replay.durable or spec.unit == "rollouts":
        return ""
    rows = capacity_chunks(spec, config.replay, _lent(config, spec)) * spec.rows(spec.chunk_length)
    row_bytes = sum(column.row_bytes / (1 if column.codec == "none" else COMPRESSION) for column in spec.columns)
    folder, disk = _disk(run)
    held = sum(path.stat().st_size for path in run.segments.glob("*.segment"))
    wanted = rows * row_bytes - held
    if wanted + LEAST_DISK_BYTES <= disk:
        return ""
    return (
        f"note: replay's log may grow by {_gigabytes(wanted)} and {folder} has {_gigabytes(disk)} free; when it is full the run "
        "goes on without; lower --replay.capacity, or --replay.durable false"
    )


def _disk(run: RunDir) -> tuple[Path, int]:
    """The folder that a run lies in, or will, and the bytes free there."""
    folder = next(path for path in (run.path, *run.path.parents) if path.exists())
    return folder, shutil.disk_usage(folder).free


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def check_env(env_id: str, picture: Path | None) -> None:
    """`headrace envs --check`: the pre-flight alone, the workload's own figures, and a picture. Raises ConfigError, EnvError."""
    config = resolve(layers({"env": {"id": env_id}}))
    os.environ.update(child_environment())
    _check_environment(config)
    # In a child: this needs the simulator and an image library.
    code = (
        "import pathlib, sys, msgspec\n"
        "from actors.envs.make import EnvError, read_env; from actors.evaluation.picture import show\n"
        "try: show(read_env(msgspec.json.decode(sys.argv[1])), *map(pathlib.Path, sys.argv[2:]))\n"
        "except (EnvError, OSError) as error: sys.exit(str(error))"
    )
    section = msgspec.json.encode(env_section(config.env)).decode()
    command = [sys.executable, "-P", "-c", code, section, *([str(picture)] if picture else [])]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise EnvError((done.stderr.strip().splitlines() or ["the picture could not be drawn"])[-1])
