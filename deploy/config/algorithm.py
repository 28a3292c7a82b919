"""The algorithm section: the name of an algorithm and, in the same flat table, the options that this one has."""

from __future__ import annotations

import msgspec

from deploy.config.files import Tree, merge
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.algorithms.base import ALGORITHMS, DEFAULT, Algorithm, Needs, find_algorithm, make_algorithm
from transport.experience import ExperienceSpec
from transport.names import Named, UnknownName


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
    """The algorithms that come with Headrace, by name."""
    return {name: find_algorithm(name) for name in ALGORITHMS}


def having(option: str) -> str:
    """The built-in algorithms with an option of this name, for a message: `only ppo has it`; empty where there is none."""
    names = [name for name, kind in builtin_algorithms().items() if option in kind.Config.__struct_fields__]
    listed = " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
    return f"only {listed} {'has' if len(names) == 1 else 'have'} it" if names else ""


def flag_for(name: str) -> str:
    """For a message about a name that is no preset's: how to choose the algorithm of that name; empty where there is none."""
    return f"it is an algorithm: --algo {name}" if name in ALGORITHMS else ""


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


def defaults(given: Tree, env: ExperienceSpec | None, on_gpu: bool) -> Tree:
    """The algorithm's defaults in all sections, below every preset; `env` is the environment's spec, once it is known."""
    kind = find(given)
    return merge(kind.defaults(env, on_gpu), (given.get("offline") and kind.offline) or {})


def needs(config: RunConfig, env: ExperienceSpec) -> Needs:
    """The experience that the algorithm needs in the environment of this spec. Raises ConfigError."""
    try:
        return make_algorithm(config.algorithm).needs(env)
    except ValueError as error:
        raise ConfigError(f"--algo {config.algorithm.name}: {error}") from error
