"""Data sets as a folder of Parquet files, with the columns of LeRobot: a row is a step.

`observation` or `observation.NAME`, `action`, `next.reward`, `next.done`, `episode_index`, `frame_index`. What followed an
episode's last action is not among LeRobot's columns: where an episode was truncated its last step is left out, unless
`next.observation…` is there.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from actors.datasets.base import DatasetError, Episode, Space, checked
from actors.envs.spaces import describe_space, read_space
from actors.envs.spec import leaves
from actors.errors import EnvError
from transport.files.documents import Damaged, read_document
from transport.files.writing import replace

MISSING = "Parquet files need pyarrow: pip install 'headrace[datasets]'"
NEEDED = ("action", "next.reward", "next.done", "episode_index")
STATE, NEXT = "observation", "next."
INFO = Path("meta") / "info.json"
CODE, FPS = "headrace", 1


class ParquetSource:
    """All files below a folder, or a single file."""

    def __init__(self, name: str) -> None:
        path = Path(name)
        self.about, self.spaces = name, None
        self._files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        try:
            if (path / INFO).is_file():
                self.spaces = _spaces(read_document(path / INFO, dict[str, Any]))
        except (Damaged, EnvError, KeyError, TypeError, OSError) as error:
            raise DatasetError(f"{path / INFO}: {error}") from error

    def episodes(self) -> Iterator[Episode]:
        """Each file holds whole episodes."""
        try:
            yield from self._episodes()
        except DatasetError:
            raise
        except (TypeError, IndexError, ValueError) as error:
            raise DatasetError(f"{self.about}: a column has not the shape that it should have ({error})") from error

    def _episodes(self) -> Iterator[Episode]:
        number = 0
        for path in self._files:
            columns = self._read(path)
            order = np.lexsort((columns.get("frame_index", np.arange(len(columns["action"]))), columns["episode_index"]))
            columns = {name: values[order] for name, values in columns.items()}
            starts = np.flatnonzero(np.diff(columns["episode_index"], prepend=np.nan) != 0).tolist()
            for start, stop in zip(starts, [*starts[1:], len(order)], strict=True):
                episode = self._episode({name: values[start:stop] for name, values in columns.items()})
                if len(episode.rewards):
                    yield checked(number, episode)
                    number += 1

    def _read(self, path: Path) -> dict[str, np.ndarray]:
        try:
            import pyarrow.parquet
        except ImportError as error:
            raise DatasetError(MISSING) from error
        try:
            table = pyarrow.parquet.read_table(path)
            columns = {name: _array(table[name]) for name in table.column_names}
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise DatasetError(f"{path} cannot be read: {' '.join(str(error).split())[:200]}") from error
        if missing := [name for name in NEEDED if name not in columns]:
            raise DatasetError(f"{path} has no {missing[0]}: it has {', '.join(sorted(columns))}")
        return columns

    def _episode(self, columns: dict[str, np.ndarray]) -> Episode:
        terminated = bool(columns["next.done"][-1]) and not bool(columns.get("next.truncated", np.zeros(1))[-1])
        states = {name: values for name, values in columns.items() if name.split(".")[0] == STATE}
        if not states:
            raise DatasetError(f"{self.about} has no observation")
        stop = len(columns["action"])
        if not terminated and any(NEXT + name not in columns for name in states):
            stop -= 1
        parts = {}
        for name, values in states.items():
            last = columns.get(NEXT + name, values)[stop - 1 : stop] if stop == len(values) else values[stop : stop + 1]
            part = name.removeprefix(f"{STATE}.") if name != STATE else STATE
            parts[part] = self._shaped(part, np.concatenate([values[:stop], last]))
        return Episode(parts, columns["action"][:stop], columns["next.reward"][:stop].reshape(stop), terminated)

    def _shaped(self, name: str, values: np.ndarray) -> np.ndarray:
        """Rows hold flat lists; the shape is that of the space, where it is known."""
        space = next((space for found, space, _ in leaves(self.spaces[0]) if found == name), None) if self.spaces else None
        return values.reshape(len(values), *space.shape) if space is not None and space.shape else values


def write_parquet(out: str, episodes: Iterable[Episode], spaces: tuple[Space, Space], source: str) -> None:
    """A folder with a file, and meta/info.json; it is whole, or not there. Raises DatasetError, OSError."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise DatasetError(MISSING) from error
    rows: dict[str, list[Any]] = {}
    for number, episode in enumerate(episodes):
        steps = len(episode.rewards)
        columns: dict[str, Any] = {"action": episode.actions, "next.reward": np.asarray(episode.rewards, np.float32)}
        for name, values in episode.observations.items():
            key = STATE if list(episode.observations) == [STATE] else f"{STATE}.{name}"
            columns[key], columns[NEXT + key] = values[:-1], values[1:]
        last = np.arange(steps) == steps - 1
        columns |= {"next.done": last, "next.truncated": last & (not episode.terminated)}
        columns |= {"episode_index": np.full(steps, number), "frame_index": np.arange(steps), "timestamp": np.arange(steps) / FPS}
        for name, values in columns.items():
            rows.setdefault(name, []).extend(np.asarray(values).reshape(steps, *([-1] if np.ndim(values) > 1 else [])).tolist())
    if not rows:
        raise DatasetError("there is no whole episode to write")
    target = Path(out)
    folder = target.with_name(f".{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    file = folder / "data" / "chunk-000" / "file-000.parquet"
    file.parent.mkdir(parents=True)
    pyarrow.parquet.write_table(pyarrow.table(rows), file)
    (folder / INFO).parent.mkdir(exist_ok=True)
    described = {"observation": describe_space(spaces[0]), "action": describe_space(spaces[1]), "source": source}
    info = {"codebase_version": "v3.0", "total_episodes": rows["episode_index"][-1] + 1, "fps": FPS, CODE: described}
    (folder / INFO).write_text(json.dumps(info, indent=1), encoding="utf-8")
    replace(folder, target)


def _spaces(info: dict[str, Any]) -> tuple[Space, Space] | None:
    found = info.get(CODE)
    return None if found is None else (read_space(found["observation"]), read_space(found["action"]))


def _array(column: Any) -> np.ndarray:
    """A column as numbers [rows, …]. Raises ValueError for lists of several lengths."""
    return np.array(column.to_pylist())
