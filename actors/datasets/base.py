"""Episodes as data sets hold them, and the protocol of what they are read from.

An episode is plain: observations and actions as the environment has them. A source is a run, a file or a folder;
`open_source()` finds it by its name.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium
import numpy as np

from actors.envs.foreign.actions import stored_actions
from actors.envs.spec import flatten_leaf, leaves
from replay.config import LARGEST
from transport.experience import Columns, ExperienceSpec
from transport.names import find

MINARI = "minari:"
MOST_STEPS = 10_000_000  # of an episode
Space = gymnasium.Space[Any]
SOURCES = {
    "run": "actors.datasets.runs:RunSource",
    "npz": "actors.datasets.npz:NpzSource",
    "parquet": "actors.datasets.parquet:ParquetSource",
    "minari": "actors.datasets.minari:MinariSource",
}
# Each takes where to write, the episodes, the spaces of observation and action, and where the episodes are from.
WRITERS = {
    "npz": "actors.datasets.npz:write_npz",
    "minari": "actors.datasets.minari:write_minari",
    "parquet": "actors.datasets.parquet:write_parquet",
}


class DatasetError(ValueError):
    """A data set that cannot be read or does not fit; the text says which part, in one line."""


class Episode(NamedTuple):
    """T steps."""

    observations: Columns  # {name: [T + 1, …]} parts of plain observations by the names of their fields; the last is the end
    actions: np.ndarray  # [T, …] as the environment takes them; of a Dict or Tuple the entries of its parts, one after the other
    rewards: np.ndarray  # [T]
    terminated: bool  # otherwise it was truncated

    @property
    def total(self) -> float:
        return float(np.sum(self.rewards, dtype=np.float64))


class Source(Protocol):
    """What episodes are read from."""

    about: str  # where they are from, for a line of a log
    spaces: tuple[Space, Space] | None  # of observation and action, where the data set has them

    def __init__(self, name: str) -> None:
        """Raises DatasetError."""

    def episodes(self) -> Iterator[Episode]:
        """Raises DatasetError, also in the middle: then the data set is damaged."""


def open_source(name: str) -> Source:
    """`name`: a run's folder or name, FILE.npz, a folder of Parquet files, or minari:ID. Raises DatasetError."""
    path = Path(name)
    if name.startswith(MINARI):
        kind, name = "minari", name.removeprefix(MINARI)
    elif path.suffix == ".npz":
        kind = "npz"
    elif path.suffix == ".parquet" or (path.is_dir() and any(path.rglob("*.parquet")) and not (path / "spec.json").is_file()):
        kind = "parquet"
    else:
        kind = "run"
    return find(kind, SOURCES, "data set")(name)  # type: ignore[no-any-return]


def stored(episode: Episode, spec: ExperienceSpec, spaces: tuple[Space, Space]) -> tuple[Columns, np.ndarray]:
    """Observations {name: [T + 1, *shape]} and actions [T, …] as replay stores them. Raises DatasetError for an episode that is
    not of these spaces."""
    observation, action = spaces
    found, wanted = dict(episode.observations), list(leaves(observation))
    if len(found) == len(wanted) == 1:  # whatever it is called there
        found = {wanted[0][0]: next(iter(found.values()))}
    columns: Columns = {}
    for name, space, _ in wanted:
        if name not in found:
            raise DatasetError(
                f"there is no {name}, which the environment observes: there are {', '.join(sorted(found)) or 'no parts'}"
            )
        values = np.asarray(found.pop(name))
        if values.shape != (len(episode.rewards) + 1, *(space.shape or ())):
            raise DatasetError(
                f"{name} has the shape {list(values.shape[1:])}, and the environment's is {list(space.shape or ())}"
            )
        _check_numbers(name, values)
        try:
            columns[name] = spec.field(name).encode(flatten_leaf(space, values))
        except (ValueError, IndexError, OverflowError) as error:
            raise DatasetError(f"{name} is not of the environment's space {space}: {error}") from error
    if found:
        raise DatasetError(f"{next(iter(found))} is no part of what the environment observes")
    _check_numbers("the reward", episode.rewards)
    _check_numbers("the action", episode.actions)
    try:
        return columns, stored_actions(action, spec.action, episode.actions)
    except ValueError as error:
        raise DatasetError(str(error)) from error


def checked(number: int, episode: Episode) -> Episode:
    """Raises DatasetError, which names the episode, unless its parts are of one length and hold numbers."""
    steps = len(episode.rewards)
    where = f"episode {number}"
    if not 1 <= steps <= MOST_STEPS or np.ndim(episode.rewards) != 1:
        raise DatasetError(f"{where} has {steps:,} steps")
    if np.asarray(episode.rewards).dtype.kind not in "iufb":
        raise DatasetError(f"{where}: the rewards are no numbers")
    if len(episode.actions) != steps:
        raise DatasetError(f"{where} has {len(episode.actions):,} actions for {steps:,} rewards")
    for name, values in episode.observations.items():
        if len(values) != steps + 1:
            raise DatasetError(f"{where} has {len(values):,} of {name} for {steps:,} steps, not one more")
    return episode


def _check_numbers(name: str, values: np.ndarray) -> None:
    if (kind := np.asarray(values).dtype.kind) not in "iufb":
        raise DatasetError(f"{name} holds no numbers ({np.asarray(values).dtype})")
    if kind in "ub":
        return
    if not np.isfinite(values).all():
        raise DatasetError(f"{name} has a value that is not finite")
    if np.abs(values, dtype=np.float64).max(initial=0.0) > LARGEST:
        raise DatasetError(f"{name} has a value beyond {LARGEST:g}")
