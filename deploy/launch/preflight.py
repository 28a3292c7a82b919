"""Tries the environment before a run starts, and checks that actors can compute as they are asked to."""

from __future__ import annotations

import time
from collections.abc import Callable

from actors.envs.make import env_section
from actors.envs.preflight.parent import PreflightRequest, PreflightResult, preflight
from deploy.children import child_environment, python_command, run_child
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from transport.experience import Categorical, ExperienceSpec, MultiCategorical
from transport.names import nearest
from transport.text import plain

DEVICES = ("auto", "cpu", "cuda", "directml", "xpu", "mps")
NAMES_ELSEWHERE = {"gpu": "cuda", "nvidia": "cuda", "amd": "cuda", "rocm": "cuda", "hip": "cuda"}
NAMES_ELSEWHERE |= {"metal": "mps", "apple": "mps", "dml": "directml", "intel": "xpu"}


def check_device_name(name: str, flag: str = "--device") -> None:
    """Raises ConfigError."""
    if name.partition(":")[0] not in DEVICES:
        meant = NAMES_ELSEWHERE.get(name.partition(":")[0].lower())
        raise ConfigError(
            f"{flag}: no device is called {name!r}; {f'did you mean {meant}?' if meant else nearest(name, DEVICES)}"
        )


def check_precision(config: RunConfig) -> None:
    """Raises ConfigError where actors cannot act in int8: only a trial shows whether this processor and this torch can."""
    if config.actors.precision != "int8":
        return
    python = config.deploy.actor_python
    done = run_child(python_command("learner.inference.int8", python=python), environment=child_environment(python))
    if done.returncode:
        said = (done.stdout or done.stderr).strip().splitlines() or [f"exit {done.returncode}"]
        raise ConfigError(f"--actors.precision: {said[-1]}")


Tell = Callable[[str], None]  # gets the name of a phase that takes long
Meanwhile = Callable[[], object]  # called once, while the environment is being tried


def in_child(config: RunConfig, tell: Tell, meanwhile: Meanwhile) -> PreflightResult:
    """The facts about the environment, found by a child process with a time limit. Raises EnvError."""
    python, copies = config.deploy.actor_python, config.actors.envs_per_actor
    command, environment = python_command("actors.envs.preflight.child", python=python), child_environment(python)
    return preflight(config.env, config.replay.codec, command, environment, copies, tell, meanwhile)


def in_this_process(config: RunConfig, tell: Tell, meanwhile: Meanwhile) -> PreflightResult:
    """The same without a time limit. What the environment raises is raised, with its traceback. Raises EnvError."""
    from actors.envs.preflight.child import inspect

    meanwhile()
    return inspect(PreflightRequest(env_section(config.env), config.replay.codec, report=""), lambda phase: None)


def try_environment(
    config: RunConfig,
    inspect: Callable[[RunConfig, Tell, Meanwhile], PreflightResult] = in_child,
    meanwhile: Meanwhile = lambda: None,
) -> PreflightResult:
    """Makes the environment, steps it, and prints what an agent sees and does. Raises EnvError."""
    print(f"checking {plain(config.env.id)} … ", end="", flush=True)
    began = time.monotonic()
    try:
        facts = inspect(config, lambda phase: print(f"{phase} … ", end="", flush=True), meanwhile)
    except BaseException:
        print("failed", flush=True)
        raise
    print(f"ok: {describe_spec(facts.spec)}, {time.monotonic() - began:.1f} s", flush=True)
    for note in facts.notes:
        print(f"note: {plain(note)}", flush=True)
    return facts


def describe_spec(spec: ExperienceSpec) -> str:
    """Observations and actions in a few words: `Box(4) -> 2 actions`."""
    parts = []
    for field in spec.visible:
        size = "x".join(map(str, field.shape)) or "1"
        parts.append(f"Box({size})" if len(spec.visible) == 1 else f"{plain(field.name)}({size})")
    stack = f" x {spec.stack}" if spec.stack > 1 else ""
    return f"{' + '.join(parts)}{stack} -> {describe_actions(spec)}"


def describe_actions(spec: ExperienceSpec) -> str:
    """`2 actions`, `2 masked actions`, `12 simultaneous actions` or `1 continuous action`."""
    if isinstance(spec.action, Categorical):
        number, kind = spec.action.n, "masked " if spec.action.masked else ""
    elif isinstance(spec.action, MultiCategorical):
        number, kind = len(spec.action.sizes), "simultaneous "
    else:
        number, kind = len(spec.action.low), "continuous "
    return f"{number} {kind}action{'' if number == 1 else 's'}"
