"""What a data set holds, and its best episodes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from actors.datasets.base import DatasetError, Source
from actors.envs.spaces import describe_space


class Summary(NamedTuple):
    """The figures of `headrace dataset show`."""

    source: str
    episodes: int
    steps: int
    terminated: int
    return_mean: float
    return_min: float
    return_max: float
    length_mean: float
    observation: Any  # space, or the shapes of its parts
    action: Any  # space, or its shape


def summarise(source: Source) -> Summary:
    """Reads all of it. Raises DatasetError."""
    returns, lengths, ends, shapes, action = [], [], 0, dict[str, Any](), list[int]()
    for episode in source.episodes():
        returns.append(episode.total)
        lengths.append(len(episode.rewards))
        ends += episode.terminated
        shapes = {name: list(values.shape[1:]) for name, values in episode.observations.items()}
        action = list(np.shape(episode.actions)[1:])
    if not returns:
        raise DatasetError(f"{source.about} has no whole episode")
    seen = (describe_space(source.spaces[0]), describe_space(source.spaces[1])) if source.spaces else (shapes, action)
    figures = float(np.mean(returns)), float(np.min(returns)), float(np.max(returns)), float(np.mean(lengths))
    return Summary(source.about, len(returns), sum(lengths), ends, *figures, *seen)


def threshold(source: Source, share: float) -> float:
    """The return that the best `share` of the episodes reach. Raises DatasetError."""
    returns = sorted((episode.total for episode in source.episodes()), reverse=True)
    if not returns:
        raise DatasetError(f"{source.about} has no whole episode")
    return returns[max(int(np.ceil(share * len(returns))), 1) - 1]


def chosen(source: Source, least: float | None, progress: Callable[[int], None]) -> Iterator[Any]:
    """The episodes with at least this return; None: all."""
    for number, episode in enumerate(source.episodes(), 1):
        progress(number)
        if least is None or episode.total >= least:
            yield episode
