"""Data sets as one .npz file: ours, and those with the arrays of D4RL."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from actors.datasets.base import DatasetError, Episode, Space, checked
from actors.envs.spaces import describe_space, read_space
from actors.errors import EnvError
from transport.files.documents import Damaged, decode, open_file
from transport.files.writing import writing

ONLY = "observations"  # of a single part; those of several are observations/NAME
ABOUT, FORMAT = "about", 1


class NpzSource:
    """`observations` [sum of T + 1, …], `actions` and `rewards` [sum of T, …], `lengths` and `terminated` [episodes]. Or D4RL's:
    `observations`, `actions`, `rewards`, `terminals` and `timeouts` [steps, …], and perhaps `next_observations`."""

    def __init__(self, name: str) -> None:
        self.about, self.spaces = name, None
        try:
            with open_file(Path(name)) as opened, np.load(opened, allow_pickle=False) as file:
                self._arrays = {key: file[key] for key in file.files}
        except Exception as error:  # of zip, of its compressions, of numpy
            raise DatasetError(f"{name} is no .npz file with arrays alone: {error}") from error
        if not {"actions", "rewards"} <= self._arrays.keys():
            raise DatasetError(f"{name} has no actions and rewards: it has {', '.join(sorted(self._arrays)) or 'nothing'}")
        if ABOUT in self._arrays:
            self.spaces = self._spaces(str(self._arrays[ABOUT]))

    def _spaces(self, text: str) -> tuple[Space, Space] | None:
        try:
            found = decode(text, dict[str, Any])
            if found.get("format") != FORMAT:
                raise DatasetError(f"{self.about} has format {found.get('format')!r:.40}, this version reads format {FORMAT}")
            return read_space(found["observation"]), read_space(found["action"])
        except (Damaged, EnvError, KeyError, TypeError) as error:
            raise DatasetError(f"{self.about}: its description is damaged: {error}") from error

    def episodes(self) -> Iterator[Episode]:
        try:
            if "lengths" in self._arrays:
                yield from self._own()
            elif "terminals" in self._arrays:
                yield from self._d4rl()
            else:
                raise DatasetError(f"{self.about} does not say where episodes end: it has neither lengths nor terminals")
        except DatasetError:
            raise
        except (TypeError, IndexError, ValueError) as error:
            raise DatasetError(f"{self.about}: an array has not the shape that it should have ({error})") from error

    def _parts(self) -> dict[str, np.ndarray]:
        named = {key.removeprefix(f"{ONLY}/"): values for key, values in self._arrays.items() if key.startswith(f"{ONLY}/")}
        if ONLY in self._arrays:
            named["observation"] = self._arrays[ONLY]
        if not named:
            raise DatasetError(f"{self.about} has no observations")
        return named

    def _own(self) -> Iterator[Episode]:
        parts, lengths, terminated = self._parts(), self._arrays["lengths"], self._arrays.get("terminated")
        if lengths.dtype.kind not in "iu" or lengths.ndim != 1 or terminated is None or terminated.shape != lengths.shape:
            raise DatasetError(f"{self.about}: lengths and terminated must be as many whole numbers and flags")
        if (lengths < 1).any() or lengths.sum() != len(self._arrays["rewards"]):
            raise DatasetError(
                f"{self.about}: lengths of {lengths.sum():,} steps in all, and {len(self._arrays['rewards']):,} rewards"
            )
        step = row = 0
        for number, length in enumerate(lengths.tolist()):
            observations = {name: values[row : row + length + 1] for name, values in parts.items()}
            actions, rewards = (self._arrays[key][step : step + length] for key in ("actions", "rewards"))
            yield checked(number, Episode(observations, actions, rewards, bool(terminated[number])))
            step, row = step + length, row + length + 1

    def _d4rl(self) -> Iterator[Episode]:
        parts, rewards, terminals = self._parts(), self._arrays["rewards"], self._arrays["terminals"]
        timeouts = self._arrays.get("timeouts", np.zeros(len(rewards), bool))
        if not (len(terminals) == len(timeouts) == len(rewards)) or any(len(values) != len(rewards) for values in parts.values()):
            raise DatasetError(f"{self.about}: observations, rewards, terminals and timeouts are not equally many")
        following = self._arrays.get("next_observations") if len(parts) == 1 else None
        cut = np.zeros(len(rewards), bool)  # where another episode begins without a timeout
        if following is not None and "timeouts" not in self._arrays:
            (only,) = parts.values()
            cut[:-1] = (following[:-1] != only[1:]).reshape(len(cut) - 1, -1).any(1)
            cut[-1:] = True
        ends, start = np.flatnonzero((terminals != 0) | (timeouts != 0) | cut).tolist(), 0
        for number, end in enumerate(ends):
            terminated, stop = bool(terminals[end]), end + 1
            observations = {name: _with_last(values[start:stop], following, end) for name, values in parts.items()}
            if following is None and not terminated:  # what followed the last action is not known
                stop -= 1
                observations = {name: values[: stop - start + 1] for name, values in observations.items()}
            if stop > start:
                actions = self._arrays["actions"][start:stop]
                yield checked(number, Episode(observations, actions, rewards[start:stop], terminated))
            start = end + 1


def _with_last(values: np.ndarray, following: np.ndarray | None, end: int) -> np.ndarray:
    """[T, …] -> [T + 1, …]."""
    return np.concatenate([values, values[-1:] if following is None else following[end : end + 1]])


def write_npz(out: str, episodes: Iterable[Episode], spaces: tuple[Space, Space], source: str) -> None:
    """Raises DatasetError, OSError."""
    if not (found := list(episodes)):
        raise DatasetError("there is no whole episode to write")
    arrays: dict[str, np.ndarray] = {
        "actions": np.concatenate([episode.actions for episode in found]),
        "rewards": np.concatenate([episode.rewards for episode in found]),
        "lengths": np.array([len(episode.rewards) for episode in found]),
        "terminated": np.array([episode.terminated for episode in found]),
    }
    names = list(found[0].observations)
    for name in names:
        key = ONLY if names == ["observation"] else f"{ONLY}/{name}"
        arrays[key] = np.concatenate([episode.observations[name] for episode in found])
    described = {"format": FORMAT, "observation": describe_space(spaces[0]), "action": describe_space(spaces[1])}
    arrays[ABOUT] = np.array(json.dumps(described | {"source": source}))
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    with writing(Path(out)) as file:
        file.write(content.getvalue())
