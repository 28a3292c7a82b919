"""Stacks observations for acting."""

from __future__ import annotations

import numpy as np

from transport.experience import ExperienceSpec


class Stack:
    """The last `spec.stack` observations of each of K environments, within the current episode.

    At the start of an episode the first observation takes the places of the older ones. Replay builds the same stacks from rows;
    both must agree byte for byte.
    """

    def __init__(self, spec: ExperienceSpec, count: int) -> None:
        """Call `reset` before the first use."""
        self._stacked = {field.name: np.zeros((count, spec.stack, *field.shape), np.dtype(field.dtype)) for field in spec.fields}

    def reset(self, observation: dict[str, np.ndarray], where: np.ndarray | None = None) -> None:
        """Fills all places with observation[name] [K, *shape], in environments where `where` [K] is True (None: all)."""
        for name, old in self._stacked.items():
            stacked = old.copy()
            rows = slice(None) if where is None else where
            stacked[rows] = observation[name][rows, None]
            self._stacked[name] = stacked

    def push(self, observation: dict[str, np.ndarray], started: np.ndarray) -> None:
        """Adds observation[name] [K, *shape]; where `started` [K] is True, it is the first of a new episode."""
        for name, old in self._stacked.items():
            if old.shape[1] == 1:  # observations are new arrays, so a stack of one needs no copy
                self._stacked[name] = observation[name][:, None]
                continue
            stacked = np.empty_like(old)
            stacked[:, :-1] = old[:, 1:]
            stacked[:, -1] = observation[name]
            stacked[started] = observation[name][started, None]
            self._stacked[name] = stacked

    @property
    def stacked(self) -> dict[str, np.ndarray]:
        """[K, stack, *shape] by field name, oldest first, at rest dtype. Later calls do not change these arrays."""
        return dict(self._stacked)
