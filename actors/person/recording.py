"""A person's episodes as a data set, whose file has all of them after each."""

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
    action: np.ndarray | np.integer  # as a policy gives it
    reward: float
    observation: Columns  # after it, the parts of the plain one by their names


class Recording:
    """The episodes of a file, and those that are added to it."""

    def __init__(self, path: Path, env: gymnasium.Env, spec: ExperienceSpec, about: str) -> None:
        """Raises DatasetError for a file whose episodes are not of this environment's spaces."""
        self.path, self._spec, self._about = path, spec, about
        self._spaces: tuple[Space, Space] = (env.observation_space, env.action_space)
        self.kept: list[Episode] = []
        if path.exists():
            source = NpzSource(str(path))
            if source.spaces is None or list(map(describe_space, source.spaces)) != list(map(describe_space, self._spaces)):
                raise DatasetError(f"{path} is there already, with episodes of another environment: name another file with --out")
            self.kept = list(source.episodes())

    def parts(self, observation: Any) -> Columns:
        """A copy of the parts of an observation by their names."""
        return {name: np.array(value) for name, _, value in leaves(self._spaces[0], observation)}

    def add(self, first: Columns, steps: list[Step], terminated: bool) -> None:
        """Writes an episode. Raises DatasetError for one that no run could take, OSError."""
        observations = {name: np.stack([value, *(step.observation[name] for step in steps)]) for name, value in first.items()}
        actions = plain_actions(self._spaces[1], np.stack([step.action for step in steps]))
        episode = Episode(observations, actions, np.array([step.reward for step in steps], np.float32), terminated)
        stored(episode, self._spec, self._spaces)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(str(self.path), [*self.kept, episode], self._spaces, self._about)
        self.kept.append(episode)

    def remove_last(self) -> None:
        """Takes the last episode out of the file, which goes with its only one. Raises OSError."""
        self.kept.pop()
        if self.kept:
            write_npz(str(self.path), self.kept, self._spaces, self._about)
        else:
            remove(self.path)
