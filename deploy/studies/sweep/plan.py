"""A sweep as its file describes it: the task, the settings to search, and the length, number and objective of the trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from actors.figures import OBJECTIVES
from deploy.config.files import Tree, leaves, merge, read_file
from deploy.config.values import duration_seconds, split_message
from deploy.errors import ConfigError
from deploy.runs import NAME
from deploy.studies.sweep.ranges import Range, read_ranges
from transport.names import nearest

SWEEPS = Path("sweeps")
# Keys of [sweep] that stay when it is resumed: with other values new trials could not be compared with old ones.
FIXED = ("time", "steps", "seeds", "objective", "time_to", "evaluations")
OWNED = {"seed": "seeds", "total_steps": "steps"}  # keys of a run that the sweep itself sets, and the key of [sweep] that says it


class SweepConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The table [sweep]."""

    trials: Annotated[int, Meta(ge=1)]  # how many are tried in all, failed ones included
    time: str | int | float = 0  # of one run, after its first step: "5m", or seconds; 0: no limit
    steps: Annotated[int, Meta(ge=0)] = 0  # environment steps of one run; 0: no limit
    seeds: Annotated[int, Meta(ge=1, le=100)] = 1  # runs of one trial, which differ in their seed
    objective: str = "return_mean"  # a figure of the evaluator, one of OBJECTIVES; maximised
    time_to: float | None = None  # if given: the time until the figure is as high as this is minimised instead
    evaluations: Annotated[int, Meta(ge=1)] = 3  # the last ones whose mean counts; for time_to, as many in a row
    sampler: Literal["tpe", "random"] = "tpe"
    pruner: Literal["median", "halving", "none"] = "median"
    jobs: Annotated[int, Meta(ge=1)] | Literal["auto"] = "auto"  # trials at once
    seed: Annotated[int, Meta(ge=0, le=2**31 - 1)] = 1  # of the sampler


@dataclass(frozen=True)
class Plan:
    """One sweep. `given`: the settings that all trials share, in the tables of a run's config.toml."""

    path: Path
    config: SweepConfig
    seconds: float
    given: Tree
    search: dict[str, Range]
    trusted: bool = False

    @property
    def folder(self) -> Path:
        """Everything that belongs to the sweep."""
        return SWEEPS / self.path.stem

    @property
    def command(self) -> str:
        """The command that starts and resumes it."""
        return f"headrace sweep {self.path}"

    @property
    def first_seed(self) -> int:
        """The seed of the first run of each trial; the others have the seeds after it."""
        return int(self.given.get("seed", 1))

    def settings(self, chosen: Mapping[str, Any]) -> Tree:
        """The settings of a trial, as a file for `headrace up --config`."""
        return merge(self.given, nested(chosen))

    @property
    def identity(self) -> dict[str, Any]:
        """The settings that must stay when the sweep is resumed, by key."""
        config = msgspec.to_builtins(self.config) | {"time": self.seconds}
        described = {f"sweep.{name}": config[name] for name in FIXED}
        described |= {f"search.{key}": msgspec.to_builtins(found) for key, found in self.search.items()}
        return described | dict(leaves(self.given))


def nested(values: Mapping[str, Any]) -> Tree:
    """{"learner.batch_size": 64} -> {"learner": {"batch_size": 64}}."""
    tree: Tree = {}
    for path, value in values.items():
        tree = merge(tree, reduce(lambda branch, name: {name: branch}, reversed(path.split(".")), value))
    return tree


def read_plan(path: Path, trusted: bool = False) -> Plan:
    """Reads the file of a sweep. check.py checks whether its settings suit a run. Raises ConfigError."""
    values = read_file(path).values
    if not NAME.fullmatch(path.stem):
        raise ConfigError(f"{path}: the sweep is named after its file: use letters, digits, dots, dashes and underscores only")
    tables = {name: values.pop(name, {}) for name in ("sweep", "search")}
    for name, table in tables.items():
        if not isinstance(table, dict) or not table:
            raise ConfigError(f"{path}: it needs a table [{name}]; see `headrace sweep --help`")
    try:
        config = msgspec.convert(tables["sweep"], SweepConfig)
    except msgspec.ValidationError as error:
        text, key = split_message(error)
        raise ConfigError(f"{path}: sweep{f'.{key}' if key else ''}: {text}") from error
    if config.objective not in OBJECTIVES:
        advice = nearest(config.objective, OBJECTIVES)
        raise ConfigError(f"{path}: sweep.objective: {config.objective!r} is not a figure of the evaluator; {advice}")
    seconds = _seconds(config, path)
    if config.time_to is not None and not seconds:
        raise ConfigError(f"{path}: sweep.time_to needs time in [sweep]: a run that misses the score counts as that time")
    search = read_ranges(tables["search"], str(path))
    for key, name in OWNED.items():
        if key in search or (key in values and key != "seed"):
            raise ConfigError(f"{path}: {key} is set by the sweep: write {name} in [sweep]")
    return Plan(path, config, seconds, values, search, trusted)


def _seconds(config: SweepConfig, path: Path) -> float:
    """The time of one run. Raises ConfigError also where a run would never end."""
    try:
        seconds = duration_seconds(str(config.time))
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigError(f"{path}: sweep.time: {config.time!r} is not a duration, such as 90s, 5m or 2h")
    if not seconds and not config.steps:
        raise ConfigError(f'{path}: it needs time = "5m" or steps = 100_000 in [sweep]: how long each run is')
    return seconds
