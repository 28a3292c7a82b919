"""What a run is: one frozen, typed configuration, made of layers. Presets, then a file, then the command line."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import tomli_w
from msgspec import Meta, Struct

from actors.config import ActorsConfig, EnvConfig, EvaluatorConfig
from deploy.config import renamed
from learner.config import AlgorithmConfig, DqnConfig, LearnerConfig, PpoConfig, SacConfig
from replay.config import ReplayConfig
from transport.names import nearest

Tree = dict[str, Any]
PRESETS = Path(__file__).parent.parent / "presets"
FLAGS = "command line"
NAME_OR_ADDRESS = re.compile(r"[A-Za-z0-9._:%-]*")
ALGORITHMS: dict[str, type[Struct]] = {"dqn": DqnConfig, "ppo": PpoConfig, "sac": SacConfig}

# What the weights of a stopped run were made for: changing one of these means another run. Simulators of one game or arm, and
# how hard its tasks are, are not among them.
FREE_ON_RESUME = ("preflight_seconds", "backend", "tolerance", "tier", "curriculum")
FIXED_ON_RESUME = (
    *(f"env.{name}" for name in EnvConfig.__struct_fields__ if name not in FREE_ON_RESUME),
    *(f"algorithm.{name}" for name in ("name", "n_step", "dueling", "network", "hidden", "layers", "hindsight")),
)


class ConfigError(ValueError):
    """A configuration that cannot be: one line that names the key and the fix."""


class DeployConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How the processes of a run are kept alive and brought to an end."""

    stop_seconds: Annotated[float, Meta(gt=0, le=300, description="time for an orderly stop; then whoever is left is killed")] = (
        8.0
    )
    leave_seconds: Annotated[
        float, Meta(ge=0, description="time an actor that is no longer wanted has to hand over what it holds")
    ] = 60.0
    restarts: Annotated[
        int, Meta(ge=0, description="deaths of one process that are made good by a restart before the next gives it up")
    ] = 6
    healthy_seconds: Annotated[float, Meta(gt=0, description="so long at work makes up for one of them")] = 5.0
    min_actors: Annotated[
        int, Meta(ge=1, description="with fewer actors that have not been given up the run fails (never more than there are)")
    ] = 1
    hang_seconds: Annotated[
        float,
        Meta(
            ge=0,
            description="an actor at work that is silent for so long is replaced; longer where steps take longer; "
            "0: 3.5, or four times what the slowest reset or step took in the check before launch",
        ),
    ] = 0.0
    stall_seconds: Annotated[
        float,
        Meta(gt=0, description="the same for learner, replay and evaluator, and an actor until its first step is done"),
    ] = 300.0
    bind: Annotated[
        str,
        Meta(
            description="address that servers listen on over TCP, such as 127.0.0.1 or ::1; any that other machines reach needs "
            "`headrace keys`; empty: private sockets of this user"
        ),
    ] = ""
    advertise: Annotated[
        str,
        Meta(
            description="name or address that clients connect to; empty: that of deploy.bind, for 0.0.0.0 and :: the host's name"
        ),
    ] = ""
    actor_python: Annotated[
        str, Meta(description="interpreter of whatever makes an environment (actors, evaluator, pre-flight); empty: this one")
    ] = ""
    verbosity: Annotated[
        Literal["all", "events"],
        Meta(description="what the terminal shows: all that the log has, or only starts, ends, evaluations and bottlenecks"),
    ] = "all"
    log_bytes: Annotated[int, Meta(ge=10_000, description="a log file is set aside at this size")] = 20_000_000
    metrics_bytes: Annotated[int, Meta(ge=10_000, description="a file of metrics is set aside at this size")] = 20_000_000
    files_kept: Annotated[int, Meta(ge=1, le=100, description="files set aside that are kept, of each log and of metrics")] = 1


class RunConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """Everything about a run. Each section is defined beside the code that reads it."""

    seed: Annotated[int, Meta(ge=0, le=2**31 - 1, description="seed of environments, exploration, sampling and weights")] = 1
    total_steps: Annotated[int, Meta(ge=0, description="end the run after this many environment steps; 0: never")] = 0
    env: EnvConfig = EnvConfig()
    algorithm: AlgorithmConfig = DqnConfig()
    actors: ActorsConfig = ActorsConfig()
    replay: ReplayConfig = ReplayConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    deploy: DeployConfig = DeployConfig()


@dataclass(frozen=True)
class Layer:
    """Some keys and where they come from; `on_gpu` lies over them when the learner has an accelerator."""

    origin: str
    values: Tree
    on_gpu: Tree = field(default_factory=dict)


@dataclass(frozen=True)
class Preset:
    """Settings that are known to work for some environments."""

    name: str
    about: str
    envs: tuple[str, ...]
    preferred: bool  # where an algorithm is not asked for, among the presets of an environment
    layer: Layer

    @property
    def algorithm(self) -> str:
        """The algorithm that it is for."""
        return str(self.layer.values.get("algorithm", {}).get("name", ""))


def read_toml(path: Path) -> Tree:
    """Raises ConfigError naming the file and the place."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} is not TOML: {error}") from error


def read_file(path: Path) -> Layer:
    """A user's settings, or a copy of a run's config.toml. Raises ConfigError."""
    values = read_toml(path)
    _check_format(path, values.pop("format", renamed.FORMAT))
    return Layer(str(path), values)


def read_run(path: Path) -> Layer:
    """A run's own config.toml; one of an older version is brought up to date. Raises ConfigError."""
    values = read_toml(path)
    number = values.pop("format", 1)
    _check_format(path, number)
    return Layer(str(path), values if number == renamed.FORMAT else renamed.migrated(values))


def _check_format(path: Path, number: object) -> None:
    if not isinstance(number, int) or number < 1:
        raise ConfigError(f"{path}: format must be a whole number, not {number!r}")
    if number > renamed.FORMAT:
        raise ConfigError(
            f"{path} was written by a newer version of Headrace (format {number}, this one reads up to {renamed.FORMAT}): "
            "use that version, or another --run"
        )


def presets() -> tuple[Preset, ...]:
    """All presets that are shipped."""
    return tuple(read_preset(path) for path in sorted(PRESETS.glob("*.toml")))


def read_preset(path: Path) -> Preset:
    """Reads one; besides the keys of a run it holds `about`, `envs` (patterns), `preferred` and the tables under `on_gpu`."""
    values = read_toml(path)
    about, envs, on_gpu = values.pop("about"), tuple(values.pop("envs")), values.pop("on_gpu", {})
    return Preset(path.stem, about, envs, values.pop("preferred", True), Layer(f"preset {path.stem}", values, on_gpu))


def preset_for(env_id: str, algorithm: str | None = None) -> Preset | None:
    """The preset that fits an environment, and the algorithm if one is asked for; None if there is none."""
    fits = [preset for preset in presets() if any(fnmatch.fnmatchcase(env_id, pattern) for pattern in preset.envs)]
    return next((preset for preset in fits if (preset.preferred if algorithm is None else preset.algorithm == algorithm)), None)


def layers(flags: Tree, file: Path | None = None, stopped: Path | None = None, wanted: str | None = None) -> list[Layer]:
    """What a run is made of, weakest first: a stopped run's own config.toml or else the presets of the algorithm and of the
    environment, the preset that is `wanted` by name, the file, the flags. Raises ConfigError."""
    known = {preset.name: preset for preset in presets()}
    if wanted is not None and wanted not in known:
        raise ConfigError(f"--preset: no preset {wanted!r}; {nearest(wanted, known)}")
    above = [known[wanted].layer] if wanted is not None else []
    above += [read_file(file)] if file else []
    above.append(Layer(FLAGS, flags))
    asked = _last(above, "algorithm", "name")
    if stopped is not None:
        below = read_run(stopped)
        before = _last([below], "algorithm", "name")
        if asked not in (None, before):
            raise ConfigError(f"this run was made with --algo {before}; use --fresh to start anew or --run for another run")
        return [below, *above]
    preset = preset_for(str(_last(above, "env", "id") or EnvConfig().id), asked)
    algorithm = known.get(asked or (preset.algorithm if preset else ""))
    return [*(found.layer for found in (algorithm, preset) if found), *above]


def _last(stack: Sequence[Layer], section: str, key: str) -> Any:
    """What the strongest layer that says it says of a key; None when none does."""
    for layer in reversed(stack):
        table = layer.values.get(section, {})
        if isinstance(table, dict) and key in table:
            return table[key]
    return None


def merge(below: Tree, above: Tree) -> Tree:
    """A new tree: `above` wins, tables are merged."""
    merged = dict(below)
    for key, value in above.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def resolve(stack: Sequence[Layer], on_gpu: bool = False) -> RunConfig:
    """Merges the layers over the built-in defaults. Raises ConfigError with one line about the first thing wrong."""
    given: Tree = {}
    for layer in stack:
        for values in (layer.values, layer.on_gpu if on_gpu else {}):
            given = merge(given, values)
    algorithm = given.get("algorithm", {})
    name = algorithm.get("name", "dqn") if isinstance(algorithm, dict) else "dqn"
    if name not in ALGORITHMS:
        raise ConfigError(f"unknown algorithm {name!r}; {nearest(str(name), ALGORITHMS)}")
    defaults = msgspec.to_builtins(RunConfig())
    defaults["algorithm"] = msgspec.to_builtins(ALGORITHMS[name]())
    for layer in stack:
        for values in (layer.values, layer.on_gpu):
            _refuse_unknown(values, defaults, layer.origin, "")
    tree = merge(defaults, given)
    try:
        config = msgspec.convert(tree, RunConfig)
    except msgspec.ValidationError as error:
        raise ConfigError(_explain(str(error), tree, stack)) from error
    complaints = validate(config)
    if complaints:
        raise ConfigError("; ".join(complaints))
    return config


def _refuse_unknown(values: Tree, known: Tree, origin: str, prefix: str) -> None:
    for key, value in values.items():
        if reason := renamed.withdrawn(f"{prefix}{key}", value):
            raise ConfigError(f"{origin}: {prefix}{key} = {value!r} is no longer taken: {reason}")
        if key not in known and (new := renamed.new_name(f"{prefix}{key}")):
            raise ConfigError(f"{origin}: {prefix}{key} is called {new} now")
        if key not in known:
            where = f"table [{prefix[:-1]}]" if prefix else "the top level"
            raise ConfigError(f"{origin}: unknown key {prefix}{key} in {where}; {nearest(key, known)}")
        if isinstance(known[key], dict) != isinstance(value, dict):
            raise ConfigError(f"{origin}: {prefix}{key} must {'' if isinstance(known[key], dict) else 'not '}be a table")
        if isinstance(value, dict):
            _refuse_unknown(value, known[key], origin, f"{prefix}{key}.")


def _explain(message: str, tree: Tree, stack: Sequence[Layer]) -> str:
    # msgspec says: Expected `int` >= 1 - at `$.replay.capacity`
    text, _, path = message.partition(" - at `$.")
    path = path.rstrip("`")
    text = text.replace("`", "")
    if not path:
        return text
    origin = next((layer.origin for layer in reversed(stack) if _lookup(layer.values, path) is not None), "")
    where = "--" + path.replace("_", "-") if origin == FLAGS else f"{origin}: {path}" if origin else path
    got = "" if ", got" in text else f", got {_lookup(tree, path)!r}"
    return f"{where}: {text[0].lower()}{text[1:]}{got}"


def _lookup(tree: Any, path: str) -> Any:
    for key in path.split("."):
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def is_address(text: str) -> bool:
    """Whether this is an IP address, or empty."""
    try:
        return not text or bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def validate(config: RunConfig) -> list[str]:
    """Complaints about sections that do not fit one another; empty when all is well."""
    replay, learner, algorithm = config.replay, config.learner, config.algorithm
    chunk = config.env.chunk_length
    rollouts = replay.selector == "fifo"
    checks = [
        (learner.batch_size % learner.accumulation == 0,
         f"learner.accumulation ({learner.accumulation}) must divide learner.batch_size ({learner.batch_size})"),
        (rollouts or replay.min_size <= replay.capacity,
         f"replay.capacity ({replay.capacity}) must be at least replay.min_size ({replay.min_size})"),
        (rollouts or learner.batch_size <= replay.min_size,
         f"replay.min_size ({replay.min_size}) must be at least learner.batch_size ({learner.batch_size})"),
        (replay.samples_per_insert_low < replay.samples_per_insert_high,
         f"replay.samples_per_insert_low ({replay.samples_per_insert_low:g}) must be below "
         f"replay.samples_per_insert_high ({replay.samples_per_insert_high:g})"),
        (isinstance(algorithm, PpoConfig) == rollouts,
         "replay.selector fifo, which serves whole chunks, each once, is what PPO needs and nothing else can use"),
        (is_address(config.deploy.bind),
         f"deploy.bind must be an IP address of this machine, such as 127.0.0.1 or ::1, not {config.deploy.bind!r}"),
        (NAME_OR_ADDRESS.fullmatch(config.deploy.advertise) is not None,
         f"deploy.advertise must be a host's name or address, not {config.deploy.advertise!r}"),
        (chunk & (chunk - 1) == 0, f"env.chunk_length must be a power of two (or 0), not {chunk}"),
    ]  # fmt: skip
    return [complaint for fine, complaint in checks if not fine]


def changes_refused_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys that differ although a stopped run's weights depend on them, as `key (old, now new)`."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    pairs = ((path, _lookup(before, path), _lookup(after, path)) for path in FIXED_ON_RESUME)
    return [f"{path} ({was!r}, now {wanted!r})" for path, was, wanted in pairs if was != wanted]


def write_config(config: RunConfig) -> bytes:
    """The resolved configuration as TOML."""
    return tomli_w.dumps({"format": renamed.FORMAT} | msgspec.to_builtins(config)).encode()


def load_run_config(path: Path) -> RunConfig:
    """Reads a run's config.toml. Raises ConfigError."""
    return resolve([read_run(path)])
