"""The stacked observation that an actor acts on."""

from __future__ import annotations

import numpy as np

from transport.experience import ExperienceSpec


class Stack:
    """The last `spec.stack` observations of each of K environments, never across a reset.

    At the start of an episode the places of older observations repeat its first one. Replay builds the same stacks
    from rows; both must agree byte for byte.
    """

    def __init__(self, spec: ExperienceSpec, count: int) -> None:
        """Makes room for `count` environments; `reset` fills it."""
        self._stacked = {field.name: np.zeros((count, spec.stack, *field.shape), np.dtype(field.dtype)) for field in spec.fields}

    def reset(self, observation: dict[str, np.ndarray], where: np.ndarray | None = None) -> None:
        """Fills every place with observation[name] [K, *shape], for environments where `where` [K] is True (None: all)."""
        for name, old in self._stacked.items():
            stacked = old.copy()
            rows = slice(None) if where is None else where
            stacked[rows] = observation[name][rows, None]
            self._stacked[name] = stacked

    def push(self, observation: dict[str, np.ndarray], started: np.ndarray) -> None:
        """Adds observation[name] [K, *shape]; where `started` [K] is True it is the first of a new episode."""
        for name, old in self._stacked.items():
            if old.shape[1] == 1:  # observations are new every time, so that one alone need not be copied
                self._stacked[name] = observation[name][:, None]
                continue
            stacked = np.empty_like(old)
            stacked[:, :-1] = old[:, 1:]
            stacked[:, -1] = observation[name]
            stacked[started] = observation[name][started, None]
            self._stacked[name] = stacked

    @property
    def stacked(self) -> dict[str, np.ndarray]:
        """[K, stack, *shape] by field name, oldest first, at rest dtype. Later calls leave these arrays alone."""
        return dict(self._stacked)
