"""`headrace up`: from what was typed to a run's folder that a supervisor can take over."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from actors.envs.base import builtin_name, find_family
from actors.envs.make import env_section, open_family, options_table
from actors.envs.preflight.parent import PreflightResult
from actors.trust import FLAG
from deploy import cores, runs
from deploy.children import check_actor_python, child_environment
from deploy.config import trust
from deploy.config.files import Layer, Tree, as_tree, leaves, lookup, merge, presets, write_config
from deploy.config.layers import layers, origins, resolve
from deploy.config.run import RunConfig
from deploy.engines.base import find_engine
from deploy.errors import ConfigError
from deploy.launch import access, defaults, preflight, resources
from deploy.launch.demonstrations import convert
from deploy.launch.probe import LearnerProbe, Probe, ProbeHere
from deploy.places.standby import Standby
from deploy.places.waiting import WaitingLearner
from deploy.reporting.sinks import feeds
from learner.algorithms.base import default_algorithm
from learner.description import PolicyDescription
from learner.inference.choice import needs_torch
from transport.experience import ExperienceSpec, write_spec
from transport.files.writing import replace as replace_file
from transport.files.writing import write_durably
from transport.names import hidden_module
from transport.run_dir import RunDir
from transport.system import is_free

SERIAL = "-serial"  # ends the default name of a run in one process
ONE_PROCESS: Tree = {  # settings of such a run, whatever files and presets have
    "actors": {"count": 1, "inference": "local"},
    "learner": {"processes": 1, "compile": False},
    "replay": {"shards": 1, "durable": False},
    "deploy": {"bind": "", "on": "", "actor_python": "", "cores": "", "pause_on": ()},
}


@dataclass(frozen=True)
class LaunchRequest:
    """A launch as the user has typed it."""

    flags: Tree
    file: Path | None = None
    name: str | None = None
    fresh: bool = False
    resume: bool = False
    preset: str | None = None
    trusted: bool = False  # settings that name code are taken from the file and the stopped run, too
    one_process: bool = False  # everything is tried in this process, and the run is to have no other
    here: bool = False  # this process will supervise the run: its processes are started while the environment is tried
    meanwhile: Callable[[], object] = lambda: None  # called then, too
    new: bool = False  # a stopped run is not resumed, but refused


@dataclass(frozen=True)
class Launch:
    """A checked run that has not been written yet. Its name is locked until the end of the `with` block.

    `standby` waits for the run, and what has not begun ends with the block; None where the run is one process.
    """

    run: RunDir
    config: RunConfig
    spec: ExperienceSpec
    spaces: dict[str, Any]
    policy: PolicyDescription
    resumed: bool
    fresh: bool
    standby: Standby | None
    cleanup: ExitStack
    origins: Callable[[], dict[str, str]]  # of each setting; resolves the configuration once more
    demonstrations: Path | None = None  # a folder that moves into the run's

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *raised: object) -> None:
        self.cleanup.close()

    def write(self) -> None:
        """Writes the files that every process of the run reads."""
        self.run.create()
        runs.keep(self.run)
        if self.demonstrations:
            shutil.rmtree(self.run.demonstrations, ignore_errors=True)  # of a start that failed
            replace_file(self.demonstrations, self.run.demonstrations)
        write_durably(self.run.config, write_config(self.config))
        write_durably(self.run.spec, write_spec(self.spec))
        write_durably(self.run.spaces, msgspec.json.encode(self.spaces))
        write_durably(self.run.policy, msgspec.json.encode(self.policy))
        try:
            trust.mark(self.run, as_tree(self.config))
        except OSError as error:
            print(f"could not remember that this run is your own ({error.strerror}): a resume will need {FLAG}")

    def resume_notice(self) -> str:
        """Lines about the weights and the experience that a resumed run goes on with, or lacks."""
        from deploy.launch import resume

        return resume.notice(self.run, self.config, self.spec)


def prepare(request: LaunchRequest) -> Launch:
    """Locks the run's name, then resolves and checks everything that can be checked before a run's processes are started.

    Raises ConfigError, EnvError, AlreadyUp, RunRefused, KeysError, NoSpace: each is one line.
    """
    if request.one_process:
        _refuse_processes(request.flags)
    with ExitStack() as cleanup:
        tried = None
        named = None if request.name is None else runs.run_dir(request.name)
        if not defaults.names_algorithm(_layers(request, named)):  # the name of the run depends on it
            request, tried = _with_algorithm(request, cleanup)
        run = named or runs.run_dir(_default_name(request))
        cleanup.enter_context(runs.locked(run))
        return _check(request, run, tried, cleanup)


def _layers(request: LaunchRequest, run: RunDir | None) -> list[Layer]:
    """The layers of a request, on those of the stopped run that it resumes, if it does. Raises ConfigError."""
    if run and run.path.exists() and not request.fresh:
        from deploy.launch import resume  # takes a fifth of the imports of a launch

        resume.check_whole(run)
    stopped = run if run and run.config.exists() and not request.fresh else None
    found = layers(request.flags, request.file, stopped, request.preset, request.trusted)
    return [*found, Layer("--serial", ONE_PROCESS)] if request.one_process else found


def _refuse_processes(flags: Tree) -> None:
    """Raises ConfigError for a typed setting that a run in one process cannot have."""
    for key, value in leaves(ONE_PROCESS):
        typed = lookup(flags, key)
        if typed is not None and str(typed).lower() != str(value).lower():
            text = ",".join(typed) if isinstance(typed, list) else typed
            raise ConfigError(f"--serial is one process: leave out --{key.replace('_', '-')} {text}")


def _say_which_algorithm(stack: Sequence[Layer]) -> None:
    """Says which algorithm the environment's preset has, where nothing else names one."""
    last = [layer for layer in stack if lookup(layer.values, "algorithm.name")][-1]
    if last in (preset.layer for preset in presets()):
        name = lookup(last.values, "algorithm.name")
        print(f"algorithm: {name}, from the {last.origin}; --algo NAME takes another", flush=True)


def _with_algorithm(request: LaunchRequest, cleanup: ExitStack) -> tuple[LaunchRequest, _Preflight]:
    """The request with the algorithm that suits its environment, which is tried for that."""
    # Without the options of the algorithm: which there are depends on its name.
    stack = [replace(layer, values={**layer.values, "algorithm": {}}) for layer in _layers(request, None)]
    _note_hidden_module(stack)
    config = _pinned(stack)
    _check_processes(config)
    _bind(config, cleanup)
    tried = _try(defaults.resolve_count(config), request, cleanup)
    tried = tried._replace(configs=(config, resolve([*stack, _options(tried.facts.options)])))
    name = default_algorithm(tried.facts.spec, config.offline)
    print(f"algorithm: {name}, for {preflight.describe_actions(tried.facts.spec)}; --algo NAME takes another", flush=True)
    return replace(request, flags=merge({"algorithm": {"name": name}}, request.flags)), tried


class _Preflight(NamedTuple):
    """The facts about the environment, the probe for device and network, and the processes that wait, None in a serial run."""

    facts: PreflightResult
    probe: Probe
    standby: Standby | None
    configs: tuple[RunConfig, ...] = ()  # for which all that was found out holds

    def holds(self, config: RunConfig) -> bool:
        return _tried_settings(config) in map(_tried_settings, self.configs)


def _tried_settings(config: RunConfig) -> tuple[object, ...]:
    """The settings that a pre-flight tries, without the number of environments: a run that has been started knows it, what was
    typed often does not."""
    learner = config.learner
    simulated = env_section(config.env), config.replay.codec, config.deploy.actor_python, config.deploy.cores
    return *simulated, learner.device, learner.precision, learner.processes


def _try(config: RunConfig, request: LaunchRequest, cleanup: ExitStack) -> _Preflight:
    """Tries the environment; meanwhile the processes of the run are started, as far as they are known. `cleanup` ends them."""
    if builtin_name(config.env.id) and (line := open_family(config.env).announcement()):
        print(line, flush=True)
    if request.one_process:
        facts = preflight.try_environment(config, preflight.in_this_process)
        return _Preflight(facts, ProbeHere(config.learner), None)
    os.environ.update(child_environment())  # of all processes that are started from here on
    learner = WaitingLearner(config.learner)
    standby = Standby(learner)
    cleanup.callback(standby.close)

    def meanwhile() -> None:
        if request.here:
            standby.fill(config)
        request.meanwhile()

    return _Preflight(preflight.try_environment(config, meanwhile=meanwhile), LearnerProbe(learner), standby)


def _check(request: LaunchRequest, run: RunDir, tried: _Preflight | None, cleanup: ExitStack) -> Launch:
    """Resolves and checks a run whose name is locked. `tried`: where its environment was tried already. `cleanup` closes what the
    launch needs; it moves into the Launch."""
    stopped = run.config.exists() and not request.fresh
    if stopped and request.new:
        raise ConfigError(f"run {run.name} exists, and --policy begins a new one: add --fresh, or name another with --run")
    if request.resume and not stopped:
        raise ConfigError(f"there is no run {run.name} to resume; leave --resume out to start it")
    stack = _layers(request, run)
    if tried is None:
        _note_hidden_module(stack)
    config = _with_engine(stack, _pinned(stack), stopped)
    if stopped:
        from deploy.launch import resume

        resume.check_config(run, config)
    _bind(config, cleanup)
    counted = defaults.resolve_count(config)
    _check_settings(run, counted, request.one_process)
    if not (stopped and any(run.checkpoints.glob("*.safetensors"))):  # it goes on with its own
        resources.check_weights(config.learner.weights)
    if tried and not tried.holds(config):  # the stopped run has other settings than were typed
        if tried.standby:
            tried.standby.close()
        tried = None
    facts, probe, standby, _ = tried or _try(counted, request, cleanup)
    on_gpu = probe.device()["device"] != "cpu"
    if stopped:
        facts = msgspec.structs.replace(facts, spec=resume.as_recorded(run, config, facts.spec))
    stack.append(_options(facts.options))
    config, spec = defaults.resolve_for(stack, facts, on_gpu)
    if stopped:
        resume.check_spec(run, config.env.id, spec)
    policy = probe.policy(config, spec)
    if why := needs_torch(policy, config.actors.precision, rows=config.actors.envs_per_actor):
        check_actor_python(config.deploy.actor_python, ("torch",), why)
    if stopped:
        resume.check_policy(run, policy)
    resources.check(config, spec, run)
    if not stopped and request.preset is None:
        _say_which_algorithm(stack)
    given = partial(origins, stack, config, on_gpu, facts.spec)
    shown = convert(config, spec, facts.spaces, run, stopped, cleanup)
    if config.replay.demonstrations and spec.unit != "rollouts":  # those imitate them before they learn
        resources.check_demonstrations(config, spec, shown or run.demonstrations)
    return Launch(run, config, spec, facts.spaces, policy, stopped, request.fresh, standby, cleanup.pop_all(), given, shown)


def _check_settings(run: RunDir, config: RunConfig, one_process: bool) -> None:
    """The checks that need no process. Raises ConfigError, RunRefused, KeysError."""
    access.check(run, config)
    if builtin_name(config.env.id) and find_family(config.env.id).decides_steps:
        _check_connecting(config, one_process)
    feeds.check(config.deploy, one_process)
    _check_processes(config)
    preflight.check_precision(config)


def _check_connecting(config: RunConfig, one_process: bool) -> None:
    """Raises ConfigError for what programs that connect to actors exclude."""
    if one_process:
        raise ConfigError(
            f"--serial: programs connect to actors, which are processes of their own; leave it out with {config.env.id}"
        )
    if config.evaluator.enabled:
        raise ConfigError(
            f"--evaluator.enabled true: with {config.env.id} programs connect to actors only; leave it out, and use headrace eval"
        )


def _check_processes(config: RunConfig) -> None:
    """Raises ConfigError where learner or simulators cannot be started."""
    preflight.check_device_name(config.learner.device)
    preflight.check_device_name(config.actors.inference_device, "--actors.inference-device")
    check_actor_python(config.deploy.actor_python)


def _bind(config: RunConfig, cleanup: ExitStack) -> None:
    """Uses only the cores that the run may have until the launch is closed: the numbers of actors and threads follow from that,
    and so do times that are measured."""
    if config.deploy.cores:
        cores.bind(cores.allowed(config.deploy.cores))
        cleanup.callback(cores.unbind)


def _note_hidden_module(stack: list[Layer]) -> None:
    """Prints a note about a module that Headrace hides, where the layers name code of the user's own. The note explains why an
    import fails, so it has to come before the import."""
    if any(trust.code_in(layer.values) for layer in stack) and (hidden := hidden_module()):
        print(f"note: {hidden}", flush=True)


def _pinned(stack: list[Layer]) -> RunConfig:
    """The configuration of these layers, with those options of its environment that can be known without making it; adds these
    options to the layers."""
    config = resolve(stack)
    if not builtin_name(config.env.id):
        return config
    stack.append(_options(options_table(open_family(config.env).pin_options())))
    return resolve(stack)


def _with_engine(stack: list[Layer], config: RunConfig, stopped: bool) -> RunConfig:
    """The configuration with the settings that the engine of the run has where no others are given; adds these to the layers,
    below the one that names the engine. Raises ConfigError, RunRefused."""
    if not (own := find_engine(config.deploy.on).prepare(config)):
        return config
    origin = f"--on {config.deploy.on}"
    naming = max(number for number, layer in enumerate(stack) if lookup(layer.values, "deploy.on"))
    moved = stopped and naming == 0 and config.deploy.bind and not is_free(config.deploy.bind, 0)
    stack.insert(naming, Layer(origin, own))
    if moved and (bind := lookup(own, "deploy.bind")):  # the stopped run was on a machine of another address
        stack.insert(naming + 2, Layer(origin, {"deploy": {"bind": bind}}))
    return resolve(stack)


def _options(options: Tree) -> Layer:
    """The options of an environment as the run's config.toml is to have them."""
    return Layer("what --env names", {"env": options})


def _default_name(request: LaunchRequest) -> str:
    config = resolve(layers(request.flags, request.file, wanted=request.preset, trusted=request.trusted))
    name = runs.default_name(config.env.id, config.algorithm.name)
    return f"{name}{SERIAL}" if request.one_process else name
