"""The algorithm section: the name of an algorithm and, in the same flat table, the options that this one has."""

from __future__ import annotations

import msgspec

from deploy.config.errors import ConfigError
from deploy.config.files import Tree
from deploy.config.run import RunConfig
from learner.algorithms.base import ALGORITHMS, DEFAULT, Algorithm, Needs, find_algorithm, make_algorithm
from transport.experience import Categorical, ExperienceSpec, observed
from transport.names import Named, UnknownName

UNKNOWN = ExperienceSpec((observed("observation", (1,), "<f4"),), Categorical(1), 1)  # of an environment not tried yet


def find(given: Tree) -> type[Algorithm]:
    """The algorithm that a configuration names. Raises ConfigError."""
    try:
        return find_algorithm(algorithm_name(given))
    except UnknownName as error:
        raise ConfigError(str(error)) from error


def algorithm_name(given: Tree) -> str:
    table = given.get("algorithm")
    return str(table.get("name", DEFAULT)) if isinstance(table, dict) else DEFAULT


def builtin_algorithms() -> dict[str, type[Algorithm]]:
    """Those that come with Headrace, by name."""
    return {name: find_algorithm(name) for name in ALGORITHMS}


def known_keys(given: Tree) -> Tree:
    """The keys of the section, each with its default."""
    return Named(algorithm_name(given), find(given).Config()).flat()


def read(table: Tree) -> Named:
    """The section with its options checked. Raises msgspec.ValidationError with the path of the flat section."""
    options = {key: value for key, value in table.items() if key != "name"}
    try:
        return Named(table["name"], msgspec.convert(options, find_algorithm(table["name"]).Config))
    except msgspec.ValidationError as error:
        raise msgspec.ValidationError(str(error).replace("`$.", "`$.algorithm.", 1)) from error


def defaults(given: Tree, spec: ExperienceSpec | None, on_gpu: bool) -> Tree:
    """What the algorithm sets in other sections unless a preset or the user does; `spec` once the environment is known."""
    return find(given).defaults(spec, on_gpu)


def needs(config: RunConfig, spec: ExperienceSpec | None = None) -> Needs:
    """What the algorithm wants of experience; `spec` once the environment is known. Raises ConfigError."""
    try:
        return make_algorithm(config.algorithm).needs(spec or UNKNOWN)
    except ValueError as error:
        raise ConfigError(f"--algo {config.algorithm.name}: {error}") from error


def takes_rollouts(config: RunConfig, spec: ExperienceSpec | None = None) -> bool:
    """Whether the algorithm learns from whole chunks, once each, as they come."""
    return needs(config, spec).unit == "rollouts"
