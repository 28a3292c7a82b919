"""Exported files of format 1: their weights, experience spec and settings as this version has them.

A module of a network had another name then, but modules follow each other in the same order, and in each its tensors have the
same names. Only built-in algorithms and networks existed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from learner.algorithms.base import Algorithm, join, make_algorithm, read_algorithm
from learner.weights.checkpoint import Weights, read
from transport.experience import Categorical, Codec, Continuous, ExperienceSpec, observed, write_spec
from transport.files import renamed
from transport.files.documents import decode

Tree = dict[str, Any]

ORDER = ("inputs", "torsos", "trunk", "policy", "head", "log_std")  # of the modules; "value" served training alone
ALGORITHMS = ("dqn", "ppo", "sac")
# Which environments had an option; the settings hold all options for every environment.
ENV_OPTIONS = {"actions": ("mario",), "backend": ("mario", "robot", "headrace"), "skip": ("mario", "ALE")} | dict.fromkeys(
    ("urdf", "arm", "reward", "tolerance", "tier", "curriculum"), ("robot", "headrace")
)


class _Field(msgspec.Struct):
    name: str
    shape: tuple[int, ...]
    dtype: str
    scale: float = 1.0
    offset: float = 0.0
    codec: Codec = "none"


class _Space(msgspec.Struct):
    """An environment, as the spec of format 1 describes it."""

    fields: list[_Field]
    action: Categorical | Continuous
    chunk_length: int
    stack: int = 1


def read_any(path: Path) -> tuple[Weights, dict[str, str]]:
    """Weights and metadata of a checkpoint, or of an exported file of any format. Raises CheckpointError."""
    return read(path, modern)


def modern(weights: Weights, metadata: dict[str, str]) -> tuple[Weights, dict[str, str]]:
    """The content of a file as this version would have written it. Raises ValueError, KeyError, TypeError or AttributeError for
    what format 1 was not."""
    config = _settings(decode(metadata["config"], Tree))
    name = config["algorithm"]["name"]
    if name not in ALGORITHMS or ":" in config["algorithm"].get("network", ""):
        raise ValueError("an algorithm or network that format 1 did not have")
    algorithm = make_algorithm(read_algorithm(config["algorithm"]))
    spec = _spec(decode(metadata["spec"], _Space), algorithm)
    metadata = metadata | {"config": json.dumps(config), "spec": write_spec(spec).decode(), "spec_digest": spec.digest}
    if "spaces" not in metadata and [field.name for field in spec.fields] == ["observation"]:
        metadata["spaces"] = json.dumps({"observation": _observation(spec), "action": _action(spec)})
    return _renamed(weights, algorithm, spec, name), metadata


def _settings(config: Tree) -> Tree:
    config = renamed.migrated({key: value for key, value in config.items() if key not in ("format", "deploy")}, 1)
    kind = re.split("[:/]", config["env"]["id"])[0]
    config["env"] = {key: value for key, value in config["env"].items() if kind in ENV_OPTIONS.get(key, (kind,))}
    return config


def _spec(space: _Space, algorithm: Algorithm) -> ExperienceSpec:
    fields = tuple(observed(**msgspec.structs.asdict(field)) for field in space.fields)
    env = ExperienceSpec(fields, space.action, space.chunk_length, space.stack)
    return join(env, algorithm.needs(env))


def _renamed(weights: Weights, algorithm: Algorithm, spec: ExperienceSpec, name: str) -> Weights:
    network: Any = algorithm.policy(spec)
    inputs = network.body.inputs
    if name != "dqn":  # the others had one layer over all inputs: images first, and each row of a stack as a whole
        in_order = [field.name for field in (*inputs.images, *inputs.vectors)] == [field.name for field in spec.fields]
        if not in_order or (spec.stack > 1 and len(inputs.widths) > 1):
            raise ValueError("its inputs had another order")
    ours = _modules(network.state_dict())
    theirs = _modules(sorted((name for name in weights if not name.startswith("value.")), key=_place))
    if [sorted(names) for names in ours] != [sorted(names) for names in theirs]:
        raise ValueError("another network")
    return {new[leaf]: weights[old[leaf]] for new, old in zip(ours, theirs, strict=True) for leaf in new}


def _modules(names: Iterable[str]) -> list[dict[str, str]]:
    """The names of each module's tensors, by the name within the module."""
    found: dict[str, dict[str, str]] = {}
    for name in names:
        module, _, leaf = name.rpartition(".")
        found.setdefault(module, {})[leaf] = name
    return list(found.values())


def _place(name: str) -> tuple[int, list[int]]:
    """Where its module stands in the network; names of unknown modules raise ValueError."""
    return ORDER.index(name.partition(".")[0]), [int(part) for part in name.split(".") if part.isdecimal()]


def _observation(spec: ExperienceSpec) -> Tree:
    """The space of a single field, which had other bounds where it was a vector: the spec does not hold them."""
    field = spec.fields[0]
    image = field.is_image
    return {"kind": "box", "shape": field.shape, "dtype": "|u1" if image else "<f4"} | (
        {"low": 0, "high": 255} if image else {"low": None, "high": None}
    )


def _action(spec: ExperienceSpec) -> Tree:
    action = spec.action
    if isinstance(action, Categorical):
        return {"kind": "discrete", "n": action.n, "start": 0}
    assert isinstance(action, Continuous)  # older versions had no other
    return {"kind": "box", "shape": [len(action.low)], "dtype": "<f4", "low": action.low, "high": action.high}
