"""A run's configuration, each setting beside its value without the user's flags and files. Imports no code of a run."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from deploy.config import algorithm, environment
from deploy.config.files import Tree, leaves, lookup, merge, preset_for, read_run
from deploy.config.layers import CHOSEN_AT_LAUNCH
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import ALGORITHMS
from transport.experience import ExperienceSpec, SpecError, read_spec
from transport.files.documents import Damaged, read_bytes, read_document
from transport.run_dir import RunDir

SECRET = re.compile(r"key|token|secret|password|credential", re.IGNORECASE)
HIDDEN = "(hidden)"
SETTLED = (*CHOSEN_AT_LAUNCH, "learner.threads", "deploy.hang_seconds")  # 0 is replaced by the launch
OF_A_RUN = ("seed", "total_steps")  # these, and the section deploy, do not change what is learned


class Setting(NamedTuple):
    """`expected`: the value of the preset, or where it has none of the algorithm, or the default. None where it is not known."""

    key: str
    value: Any
    expected: Any
    origin: str  # of `expected`

    @property
    def differs(self) -> bool:
        return self.expected is not None and self.value != self.expected


def settings_of(run: RunDir) -> list[Setting]:
    """Every setting of config.toml; none if it cannot be read."""
    try:
        given = read_run(run.config).values
    except ConfigError:
        return []
    preset = preset_for(str(lookup(given, "env.id")), algorithm.algorithm_name(given))
    below = defaults(run, given)
    layer = preset.layer if preset else None
    gpu = layer.on_gpu if layer and on_gpu(run) else {}
    above = merge(layer.values, gpu) if layer else {}
    for key in SETTLED:
        if lookup(below, key) == 0:
            section, _, name = key.partition(".")
            del below[section][name]
    return [
        Setting(key, shown(key, value), shown(key, found), layer.origin)
        if layer and (found := lookup(above, key)) is not None
        else Setting(key, shown(key, value), shown(key, lookup(below, key)), "default")
        for key, value in leaves(given)
    ]


def defaults(run: RunDir, given: Tree) -> Tree:
    """The defaults of all settings. Options of an environment or algorithm that is not built in are left out, because only its
    own module knows them."""
    tree: Tree = msgspec.to_builtins(RunConfig())
    tree["algorithm"] = tree["env"] = {}
    try:
        tree["env"] = environment.known_keys(given, environment.options_of(given, written=True))
        if algorithm.algorithm_name(given) in ALGORITHMS:
            tree["algorithm"] = algorithm.known_keys(given)
            tree = merge(tree, algorithm.defaults(given, spec_of(run), on_gpu(run)))
    except (ConfigError, ValueError):
        pass
    return tree


def learned_from(settings: list[Setting]) -> dict[str, Any]:
    """The settings that decide what is learned: runs that are equal in these are repetitions of each other."""
    return {one.key: one.value for one in settings if one.key not in OF_A_RUN and not one.key.startswith("deploy.")}


def shown(key: str, value: Any) -> Any:
    """A value as it may be handed on: options of sinks that look like secrets are not."""
    value = list(value) if isinstance(value, tuple) else value  # as TOML has it
    return HIDDEN if value is not None and key.startswith("deploy.sink_options.") and SECRET.search(key) else value


def on_gpu(run: RunDir) -> bool:
    return read_device(run).get("device", "cpu") != "cpu"


def spec_of(run: RunDir) -> ExperienceSpec | None:
    try:
        return read_spec(read_bytes(run.spec))
    except (OSError, SpecError):
        return None


def read_device(run: RunDir) -> dict[str, Any]:
    """device.json of the newest learner, or an empty document."""
    try:
        return read_document(run.device, dict[str, Any])
    except (OSError, Damaged):
        return {}
