"""Data sets of Minari, local ones or from its server: `minari:ID`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from actors.datasets.base import DatasetError, Episode, Space, checked
from actors.envs.spec import leaf_name, leaves
from transport.experience import Columns
from transport.files.writing import replace

ROOT = "MINARI_DATASETS_PATH"
MISSING = "data sets of Minari need it: pip install 'headrace[datasets]'"


class MinariSource:
    """Downloads what is not here yet."""

    def __init__(self, name: str) -> None:
        minari, self.about = _minari(), f"minari:{name}"
        try:
            self._data = minari.load_dataset(name, download=True)
        except Exception as error:  # of the network, of files, of its own
            raise DatasetError(f"Minari cannot load {name}: {type(error).__name__}: {_line(error)}") from error
        self.spaces: tuple[Space, Space] | None = (self._data.observation_space, self._data.action_space)

    def episodes(self) -> Iterator[Episode]:
        observation, action = self.spaces or (None, None)
        assert observation is not None and action is not None
        iterator = self._data.iterate_episodes()
        number = 0
        while True:
            try:
                found = next(iterator, None)
            except Exception as error:
                raise DatasetError(f"{self.about} is damaged at episode {number}: {_line(error)}") from error
            if found is None:
                return
            try:
                parts = {name: np.asarray(values) for name, _, values in leaves(observation, found.observations)}
                actions = _entries(action, found.actions)
                episode = Episode(parts, actions, np.asarray(found.rewards), bool(found.terminations[-1]))
            except (KeyError, IndexError, TypeError, ValueError) as error:
                raise DatasetError(f"{self.about}, episode {number} is not of its spaces: {_line(error)}") from error
            yield checked(number, episode)
            number += 1


def write_minari(name: str, episodes: Iterable[Episode], spaces_of: tuple[Space, Space], source: str) -> None:
    """Makes a local data set; it is whole, or not there. Raises DatasetError where there is one of that name, or the name is
    none."""
    minari = _minari()
    from minari.data_collector import EpisodeBuffer
    from minari.namespace import create_namespace, list_local_namespaces
    from minari.storage import get_dataset_path

    observation, action = spaces_of
    buffers = []
    for number, episode in enumerate(episodes):
        ended = np.zeros((2, len(episode.rewards)), bool)
        ended[0 if episode.terminated else 1, -1] = True
        actions = split_entries(action, episode.actions)
        parts = nested(observation, episode.observations)
        buffers.append(
            EpisodeBuffer(number, None, None, parts, actions, list(episode.rewards), list(ended[0]), list(ended[1]), None)
        )
    root, target = get_dataset_path(), get_dataset_path(name)
    partial = root / f".{name.replace('/', '-')}.partial"
    shutil.rmtree(partial, ignore_errors=True)  # of a writer that was killed
    if target.exists():
        raise DatasetError(f"there is a data set minari:{name} already: name another with --out")
    try:
        with _within(partial):
            minari.create_dataset_from_buffers(
                name,
                buffers,
                observation_space=observation,
                action_space=action,
                jpeg_encoding=False,  # which would change pictures
                description=f"made by headrace from {source}",
            )
        namespace = name.rpartition("/")[0]
        if namespace and namespace not in list_local_namespaces():
            create_namespace(namespace)
        replace(partial / name, target)
    except Exception as error:
        raise DatasetError(f"Minari cannot make {name}: {type(error).__name__}: {_line(error)}") from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _within(root: Path) -> Iterator[None]:
    """Until the end of the block Minari's data sets are in this folder."""
    before = os.environ.get(ROOT)
    os.environ[ROOT] = str(root)
    try:
        yield
    finally:
        os.environ.pop(ROOT)
        if before is not None:
            os.environ[ROOT] = before


def nested(space: Space, parts: Columns, name: str = "") -> Any:
    """Parts by the names of their fields as the space has them. Texts of a Dict are left out, as leaves() does."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        found = {key: nested(sub, parts, f"{name}.{key}" if name else str(key)) for key, sub in items}
        return found if isinstance(space, spaces.Dict) else tuple(found.values())
    return parts[leaf_name(name)]


def split_entries(space: Space, entries: np.ndarray) -> Any:
    """Entries [T, D] of a Dict or Tuple, one after the other, as the space has them; others unchanged."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return entries
    items = list(space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces))
    ends = np.cumsum([_width(sub) for _, sub in items])[:-1]
    parts = {
        key: split_entries(sub, part.reshape(len(part), *(sub.shape or ())) if sub.shape is not None else part)
        for (key, sub), part in zip(items, np.split(entries, ends, axis=1), strict=True)
    }
    return parts if isinstance(space, spaces.Dict) else tuple(parts.values())


def _entries(space: Space, actions: Any) -> np.ndarray:
    """The inverse of split_entries()."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return np.asarray(actions)
    items = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    parts = [_entries(sub, actions[key]) for key, sub in items]
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def _width(space: Space) -> int:
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return sum(map(_width, space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces))
    return int(np.prod(space.shape or ()))


def _minari() -> Any:
    try:
        import minari
    except ImportError as error:
        raise DatasetError(MISSING) from error
    return minari


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
