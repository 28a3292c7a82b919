"""Writes a person's episodes to a data set. After each episode the file is complete."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from actors.datasets.base import DatasetError, Episode, Space, stored
from actors.datasets.npz import NpzSource, write_npz
from actors.envs.foreign.actions import plain_actions
from actors.envs.spaces import describe_space
from actors.envs.spec import leaves
from transport.experience import Columns, ExperienceSpec
from transport.files.writing import remove


class Step(NamedTuple):
    action: np.ndarray | np.integer  # in the form that a policy gives
    reward: float
    observation: Columns  # after the step: its parts by name


class Recording:
    """The episodes of a file, to which new ones are added."""

    def __init__(self, path: Path, env: gymnasium.Env, spec: ExperienceSpec, about: str) -> None:
        """`about`: where the episodes come from. Raises DatasetError for a file with episodes of other spaces."""
        self.path, self._spec, self._about = path, spec, about
        self._spaces: tuple[Space, Space] = (env.observation_space, env.action_space)
        self.episodes: list[Episode] = []
        if path.exists():
            source = NpzSource(str(path))
            if source.spaces is None or list(map(describe_space, source.spaces)) != list(map(describe_space, self._spaces)):
                raise DatasetError(f"{path} is there already, with episodes of another environment: name another file with --out")
            self.episodes = list(source.episodes())

    def parts(self, observation: Any) -> Columns:
        """Copies of the parts of an observation, by name."""
        return {name: np.array(value) for name, _, value in leaves(self._spaces[0], observation)}

    def add(self, first: Columns, steps: list[Step], terminated: bool) -> None:
        """Writes an episode. Raises DatasetError for one that no run could take, OSError."""
        observations = {name: np.stack([value, *(step.observation[name] for step in steps)]) for name, value in first.items()}
        actions = plain_actions(self._spaces[1], np.stack([step.action for step in steps]))
        episode = Episode(observations, actions, np.array([step.reward for step in steps], np.float32), terminated)
        stored(episode, self._spec, self._spaces)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(str(self.path), [*self.episodes, episode], self._spaces, self._about)
        self.episodes.append(episode)

    def remove_last(self) -> None:
        """Removes the last episode, and the file with its only one. Raises OSError."""
        self.episodes.pop()
        if self.episodes:
            write_npz(str(self.path), self.episodes, self._spaces, self._about)
        else:
            remove(self.path)
