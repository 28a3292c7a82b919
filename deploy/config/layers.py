"""A run's configuration from its layers: algorithm, preset, file, command line. The later ones win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from actors.config import EnvConfig
from deploy.config import algorithm, environment, trust
from deploy.config.checks import validate
from deploy.config.files import FLAGS, Layer, Preset, Tree, as_tree, leaves, lookup, merge, named, preset_for, presets
from deploy.config.run import RunConfig
from deploy.config.values import split_rate
from deploy.errors import ConfigError
from transport.experience import ExperienceSpec
from transport.files import renamed
from transport.names import nearest
from transport.run_dir import RunDir

# The launch replaces 0, the default of these. As a flag 0 is refused: `--actors 0` reads as if there were to be no actors.
FOUND, DEFAULT = "found out", "default"  # origins of settings that no layer has
CHOSEN_AT_LAUNCH = ("actors.count", "actors.envs_per_actor")


def layers(
    flags: Tree,
    file: Path | None = None,
    stopped: RunDir | None = None,
    wanted: str | None = None,
    trusted: bool = False,
) -> list[Layer]:
    """The layers of a run, the weakest first: the config.toml of the `stopped` run, otherwise the environment's preset; then
    the preset that is `wanted` by name, the file, the flags. Where no other layer names an environment, the wanted preset does.
    Raises ConfigError, also where file or run name code and are not to be `trusted`."""
    known = {preset.name: preset for preset in presets()}
    if wanted is not None and wanted not in known:
        hint = algorithm.flag_for(wanted) or nearest(wanted, known)
        raise ConfigError(f"--preset: there is no preset {wanted!r}; {hint}")
    above = [trust.read_file(file, trusted)] if file else []
    above.append(Layer(FLAGS, flags))
    if wanted is not None:
        names_env = stopped is not None or _last(above, "env", "id")
        chosen = _for_network(known[wanted].layer, above)
        above = [chosen if names_env else _with_env(replace(known[wanted], layer=chosen)), *above]
    asked = _last(above, "algorithm", "name")
    if stopped is not None:
        below = trust.read_run(stopped, trusted)
        before = _last([below], "algorithm", "name")
        if asked not in (None, before):
            raise ConfigError(
                f"this run was made with --algo {before}, not {asked}; use --fresh to start anew or --run for another run"
            )
        return [_completed(below), *above]
    preset = preset_for(str(_last(above, "env", "id") or EnvConfig().id), asked, {key for layer in above for key in layer.values})
    if is_offline(above) and asked is None and preset and algorithm.find(preset.layer.values).offline is None:
        preset = None  # its algorithm needs actors
    return [*([_for_network(preset.layer, above)] if preset else []), *above]


def _for_network(preset: Layer, above: Sequence[Layer]) -> Layer:
    """A preset without the options of its network, where a stronger layer names another one."""
    own, asked = preset.values.get("algorithm", {}), _last(above, "algorithm", "network")
    if asked in (None, own.get("network")):
        return preset
    kept = {name: value for name, value in own.items() if name != "network_options"}
    return replace(preset, values=preset.values | {"algorithm": kept})


def is_offline(stack: Sequence[Layer]) -> bool:
    """Whether these layers ask for an offline run."""
    return bool(next((layer.values["offline"] for layer in reversed(stack) if "offline" in layer.values), False))


def _completed(run: Layer) -> Layer:
    """A run's own settings with those options of its algorithm that an older version did not have, and so has not recorded: what
    a new run would get may not fit the run's checkpoint."""
    return replace(run, values=merge({"algorithm": algorithm.known_keys(run.values)}, run.values))


def _with_env(preset: Preset) -> Layer:
    """A preset that is asked for alone: it brings the first of its environments, if it has any. Raises ConfigError."""
    if not preset.envs:
        return preset.layer
    if "*" in preset.envs[0]:
        raise ConfigError(f"--preset {preset.name} fits many environments: name one of {preset.envs[0]} with --env")
    return replace(preset.layer, values=merge(preset.layer.values, {"env": {"id": preset.envs[0]}}))


def _last(stack: Sequence[Layer], section: str, key: str) -> Any:
    """The value of a key in the last layer that has it; None where none has."""
    for layer in reversed(stack):
        table = layer.values.get(section, {})
        if isinstance(table, dict) and key in table:
            return table[key]
    return None


def resolve(
    stack: Sequence[Layer],
    on_gpu: bool = False,
    env: ExperienceSpec | None = None,
    written: bool = False,
    spec: ExperienceSpec | None = None,
) -> RunConfig:
    """Merges the built-in defaults, those of the algorithm for the environment (`env`, its spec, once it is known) and the
    device, and the layers. `spec`, the run's, is only checked against the result. A configuration that was `written` by a run is
    read without importing its environment's module.

    Raises ConfigError with one line about the first mistake.
    """
    given: Tree = {}
    stack = [_with_schedule(layer) for layer in stack]
    for layer in stack:
        for values in (layer.values, layer.on_gpu if on_gpu else {}):
            given = merge(merge(given, _firm(values)), values)
    env_options = environment.options_of(given, written)
    defaults = msgspec.to_builtins(RunConfig())
    defaults["env"] = environment.known_keys(given, env_options)
    defaults["algorithm"] = algorithm.known_keys(given)
    own = Layer(f"algorithm {algorithm.algorithm_name(given)}", algorithm.defaults(given, env, on_gpu))
    for layer in (own, *stack):
        for values in (layer.values, layer.on_gpu):
            _refuse_unknown(values, defaults, layer.origin, "")
    tree = merge(merge(defaults, own.values), given)
    try:
        named = {"env": environment.joined(tree["env"], env_options), "algorithm": algorithm.read(tree["algorithm"])}
        config = msgspec.convert(tree | named, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), tree, stack)) from error
    typed = next((layer.values for layer in stack if layer.origin == FLAGS), {})
    zeros = [f"{path}: expected int >= 1, got 0" for path in CHOSEN_AT_LAUNCH if lookup(typed, path) == 0]
    if config.offline and lookup(typed, "actors.count"):
        zeros.append("actors.count: an offline run has no actors: leave it out")
    complaints = [_with_origin(complaint, stack) for complaint in (*zeros, *validate(config, spec))]
    if complaints:
        raise ConfigError("; ".join(complaints))
    return config


def origins(stack: Sequence[Layer], config: RunConfig, on_gpu: bool, env: ExperienceSpec | None) -> dict[str, str]:
    """For each dotted key of a `config` that was resolved from these layers: the layer that set it, FOUND for what the launch
    itself has found out, or DEFAULT."""
    own = Layer(f"algorithm {config.algorithm.name}", algorithm.defaults(as_tree(config), env, on_gpu))
    asked = dict(leaves(as_tree(resolve(stack, on_gpu, env))))
    stack = [_with_schedule(layer) for layer in stack]
    found = {}
    for path, value in leaves(as_tree(config)):
        setting = [
            layer.origin
            for layer in (own, *stack)
            for values in (layer.values, _firm(layer.values), layer.on_gpu if on_gpu else {})
            if lookup(values, path) is not None
        ]
        found[path] = FOUND if asked.get(path) != value else setting[-1] if setting else DEFAULT
    return found


def _with_schedule(layer: Layer) -> Layer:
    """The layer; a learning rate of lin_3e-4 in it becomes a rate and a schedule. Raises ConfigError."""
    given = lookup(layer.values, "learner.learning_rate")
    try:
        found = split_rate(given)
    except ValueError:
        raise ConfigError(f"{named('learner.learning_rate', layer.origin)}: {given!r} has no number after lin_ or cos_") from None
    if not isinstance(found, tuple):
        return layer
    keys = dict(zip(("learning_rate", "learning_rate_schedule"), found, strict=True))
    return replace(layer, values=merge(layer.values, {"learner": keys}))


def _firm(values: Tree) -> Tree:
    """A layer that sets the upper end of the band withdraws the limit above it that a lower layer has set."""
    high = lookup(values, "replay.samples_per_insert_high")
    return {} if high is None else {"replay": {"samples_per_insert_limit": 0.0}}


def _with_origin(complaint: str, stack: Sequence[Layer]) -> str:
    """A complaint `section.key: …`, with the file or the flag that the key is from."""
    path = complaint.partition(":")[0]
    return named(path, _origin(path, stack)) + complaint.removeprefix(path)


def _origin(path: str, stack: Sequence[Layer]) -> str:
    """The last layer that has a key; nothing where none has."""
    return next((layer.origin for layer in reversed(stack) if lookup(layer.values, path) is not None), "")


def _refuse_unknown(values: Tree, known: Tree, origin: str, prefix: str) -> None:
    for key, value in values.items():
        if reason := renamed.withdrawn(f"{prefix}{key}", value):
            raise ConfigError(f"{named(prefix + key, origin)} = {value!r} is no longer accepted: {reason}")
        if key not in known and (advice := renamed.removed(f"{prefix}{key}")):
            raise ConfigError(f"{named(prefix + key, origin)} is gone: {advice}")
        if key not in known and (new := renamed.new_name(f"{prefix}{key}")):
            raise ConfigError(f"{named(prefix + key, origin)} is called {new} now")
        if key not in known and prefix == "env.":
            raise ConfigError(environment.unknown_key(str(known["id"]), key, known, origin))
        if key not in known and prefix == "algorithm." and (owners := algorithm.having(key)):
            raise ConfigError(f"{named(prefix + key, origin)}: {owners}; {known['name']} does not")
        if key not in known:
            where = f"table [{prefix[:-1]}]" if prefix else "the top level"
            raise ConfigError(f"{origin}: unknown key {prefix}{key} in {where}; {nearest(key, known)}")
        if isinstance(known[key], dict) != isinstance(value, dict):
            raise ConfigError(f"{named(prefix + key, origin)} must {'' if isinstance(known[key], dict) else 'not '}be a table")
        if isinstance(value, dict) and known[key]:  # an empty table holds keys of another package
            _refuse_unknown(value, known[key], origin, f"{prefix}{key}.")


def _explain(message: str, tree: Tree, stack: Sequence[Layer]) -> str:
    # msgspec says: Expected `int` >= 1 - at `$.replay.capacity`
    text, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    text = text.replace("`", "")
    if not path:
        return text
    got = "" if ", got" in text else f", got {lookup(tree, path)!r}"
    return f"{named(path, _origin(path, stack))}: {text[0].lower()}{text[1:]}{got}"


def load_run_config(run: RunDir, trusted: bool = False) -> RunConfig:
    """Reads a run's config.toml. Raises ConfigError, also where it names code and is not to be `trusted`."""
    return resolve([trust.read_run(run, trusted)], written=True)
