"""The file of `headrace suite`: what is compared, on which tasks, with which seeds.

    seeds = 3                                   # 1, 2, 3; or a list
    minutes = 5                                 # of each run, from the start of its process

    [tasks.CartPole-v1]                         # `env` is the name unless it is given
    random = 22                                 # mean return of random actions
    reference = 500                             # a return that counts as solved

    [contestants.headrace]
    [contestants.tuned]
    settings.learner.learning_rate = 1e-3       # keys of a run's configuration

All keys are fields of the structs below.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct, structs

from deploy.config.files import Tree, merge, read_toml
from deploy.config.values import split_message
from deploy.errors import ConfigError
from transport.names import nearest

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
LARGEST_SEED = 2**31 - 1
SNAPSHOTS = 60  # of a run, where the file does not say how often
LEAST_SNAPSHOT_SECONDS = 1.0
S = TypeVar("S", bound=Struct)


class SuiteOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The keys at the top of the file; a task may replace some of them."""

    seeds: Annotated[int, Meta(ge=1, le=1000)] | list[Annotated[int, Meta(ge=0, le=LARGEST_SEED)]]
    about: str = ""  # the title of the page
    minutes: Annotated[float, Meta(gt=0)] = 10.0
    snapshot_seconds: Annotated[float, Meta(ge=0.2)] | None = None  # between two saved policies; None: a 60th of the run
    episodes: Annotated[int, Meta(ge=1)] = 20  # of an evaluation
    final_evaluations: Annotated[int, Meta(ge=1)] = 5  # the last ones, whose mean is the final score


class TaskOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of [tasks]."""

    env: str | dict[str, Any] = ""  # an id, or the [env] section of a run
    metric: Literal["return", "success", "score"] = "return"  # of an episode
    random: float | None = None
    reference: float | None = None
    source: str = ""  # where `reference` comes from
    minutes: Annotated[float, Meta(gt=0)] | None = None
    total_steps: Annotated[int, Meta(ge=1)] | None = None  # environment steps after which a run ends, if it has not before
    snapshot_seconds: Annotated[float, Meta(ge=0.2)] | None = None
    episodes: Annotated[int, Meta(ge=1)] | None = None


class ContestantOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """A table of [contestants]."""

    kind: str = "headrace"
    settings: dict[str, Any] = {}  # of all tasks
    tasks: dict[str, dict[str, Any]] = {}  # of single tasks; they win
    only: list[str] = []  # the tasks that it takes part in; empty: all
    python: str = ""  # the interpreter of a peer; empty: that of --peer-python, else this one
    threads: Annotated[int, Meta(ge=1, le=1024)] = 1  # that a peer computes with


class Task(NamedTuple):
    """A task with everything filled in. `random` and `reference` are both given or both None."""

    name: str
    env: Tree
    metric: str
    random: float | None
    reference: float | None
    source: str
    seconds: float
    total_steps: int
    snapshot_seconds: float
    episodes: int


class Contestant(ContestantOptions, frozen=True, kw_only=True):
    name: str
    peer_python: str = ""  # of the command line

    def settings_for(self, task: Task) -> Tree:
        return merge(self.settings, self.tasks.get(task.name, {}))


class Suite(NamedTuple):
    name: str
    about: str
    seeds: tuple[int, ...]
    final_evaluations: int
    tasks: tuple[Task, ...]
    contestants: tuple[Contestant, ...]


class SuiteRun(NamedTuple):
    """One training: a contestant on a task with a seed."""

    suite: str
    task: Task
    contestant: Contestant
    seed: int

    @property
    def name(self) -> str:
        """The name of its run folder and of its result."""
        return re.sub(r"[^A-Za-z0-9.]+", "-", f"{self.suite}-{self.task.name}-{self.contestant.name}-{self.seed}").lower()

    def asked(self) -> Tree:
        """Everything that its result depends on. A result that was made with other values is not used."""
        task, contestant = self.task, self.contestant
        limits = {"seconds": task.seconds, "total_steps": task.total_steps, "snapshot_seconds": task.snapshot_seconds}
        chosen = {"kind": contestant.kind, "settings": contestant.settings_for(task), "threads": contestant.threads}
        return {"env": task.env, "episodes": task.episodes, "seed": self.seed, **limits, **chosen}


def read(path: Path, peer_python: str = "") -> Suite:
    """`peer_python`: the interpreter of contestants that name none. Raises ConfigError, in one line that names the key."""
    values = read_toml(path)
    tables = {name: _table(path, values.pop(name, None), name) for name in ("tasks", "contestants")}
    if "seeds" not in values:
        raise ConfigError(f"{path}: seeds is missing: give their number, as seeds = 3, or a list of them")
    options = _convert(path, values, SuiteOptions, "")
    found = options.seeds
    seeds = tuple(range(1, found + 1)) if isinstance(found, int) else tuple(found)
    if not seeds or len(set(seeds)) < len(seeds):
        raise ConfigError(f"{path}: seeds must be different numbers, at least one")
    tasks = tuple(_task(path, name, table, options) for name, table in tables["tasks"].items())
    contestants = tuple(_contestant(path, name, table, tasks, peer_python) for name, table in tables["contestants"].items())
    suite = Suite(path.stem, options.about, seeds, options.final_evaluations, tasks, contestants)
    if not NAME.fullmatch(suite.name):
        raise ConfigError(f"{path}: the file's name is the suite's: letters, digits, dots, dashes and underscores only")
    names = [run.name for run in order(suite)]
    if len(set(names)) < len(names):
        raise ConfigError(f"{path}: two tasks or two contestants differ only in letters that the names of runs do not keep")
    return suite


def order(suite: Suite) -> Iterator[SuiteRun]:
    """All runs with the first seed, task by task, then with the second, and so on: what is finished compares all tasks. Each seed
    begins with another contestant, so that a machine that becomes slower or faster favours none."""
    for number, seed in enumerate(suite.seeds):
        first = number % len(suite.contestants)
        for task in suite.tasks:
            for contestant in suite.contestants[first:] + suite.contestants[:first]:
                if not contestant.only or task.name in contestant.only:
                    yield SuiteRun(suite.name, task, contestant, seed)


def _task(path: Path, name: str, table: Any, options: SuiteOptions) -> Task:
    where = f"tasks.{name}."
    given = _convert(path, table, TaskOptions, where)
    env = dict(given.env) if isinstance(given.env, dict) else {"id": given.env or name}
    if not isinstance(env.setdefault("id", name), str):
        raise ConfigError(f"{path}: {where}env.id must be a text")
    if (given.random is None) != (given.reference is None):
        missing = "random" if given.random is None else "reference"
        raise ConfigError(f"{path}: {where}{missing} is missing: time to a score needs both random and reference")
    if given.random is not None and given.reference is not None and given.reference <= given.random:
        raise ConfigError(f"{path}: {where}reference ({given.reference:g}) must be above random ({given.random:g})")
    seconds = 60 * (given.minutes or options.minutes)
    every = given.snapshot_seconds or options.snapshot_seconds or max(seconds / SNAPSHOTS, LEAST_SNAPSHOT_SECONDS)
    figures = (given.metric, given.random, given.reference, given.source)
    return Task(name, env, *figures, seconds, given.total_steps or 0, every, given.episodes or options.episodes)


def _contestant(path: Path, name: str, table: Any, tasks: tuple[Task, ...], peer_python: str) -> Contestant:
    where = f"contestants.{name}."
    if not NAME.fullmatch(name):
        raise ConfigError(f"{path}: contestants: {name!r} is not a name: letters, digits, dots, dashes and underscores only")
    given = _convert(path, table, ContestantOptions, where)
    known = [task.name for task in tasks]
    for key, other in [("tasks", name) for name in given.tasks] + [("only", name) for name in given.only]:
        if other not in known:
            raise ConfigError(f"{path}: {where}{key}.{other}: there is no such task; {nearest(other, known)}")
    return Contestant(name=name, peer_python=peer_python, **structs.asdict(given))


def _table(path: Path, found: Any, name: str) -> dict[str, Any]:
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"{path}: there is no {name.removesuffix('s')}: give at least one table [{name}.NAME]")
    return found


def _convert(path: Path, table: Any, kind: type[S], where: str) -> S:
    """A table as a struct. Raises ConfigError that names the key."""
    if not isinstance(table, dict):
        raise ConfigError(f"{path}: {where.removesuffix('.')} must be a table")
    for key, value in table.items():
        if key not in kind.__struct_fields__:
            raise ConfigError(f"{path}: unknown key {where}{key}; {nearest(key, kind.__struct_fields__)}")
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(f"{path}: {where}{key}: expected a finite number, got {value}")
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        text, key = split_message(error)
        got = "" if ", got" in text else f", got {table.get(key.partition('[')[0])!r}"
        raise ConfigError(f"{path}: {where}{key}: {text}{got}") from error
