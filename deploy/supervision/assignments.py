"""Assigns environments to actors. Exploration rates and first seeds follow from that."""

from __future__ import annotations

from msgspec import structs

from transport.messages.control import Assignment


class Assignments:
    """One assignment per actor. No seed is used twice, so that no two incarnations of an actor see the same episodes."""

    def __init__(self, actors: int, envs_per_actor: int, next_seed: int, level: int = 0) -> None:
        """`next_seed` is the first unused seed, `level` the curriculum's."""
        self._envs_per_actor = envs_per_actor
        self.next_seed = next_seed
        self._level = level
        self.renew(actors)

    def renew(self, actors: int) -> None:
        """Makes new assignments for all actors: the exploration rates are spread over the present environments."""
        self._environments = actors * self._envs_per_actor
        self._current = {index: self._make(index) for index in range(actors)}
        self._known: set[int] = set()  # actors that were started with their assignment, or that it was sent to

    def set_level(self, level: int) -> None:
        """Sets the curriculum's level. Environments and seeds stay."""
        self._level = level
        self._current = {index: structs.replace(one, level=level) for index, one in self._current.items()}
        self._known = set()

    def for_start(self, index: int) -> Assignment:
        """The assignment of an actor that is about to start, with new seeds for each incarnation. Call `started` once it runs."""
        if index in self._known:
            self._known.remove(index)
            self._current[index] = self._make(index)
        return self._current[index]

    def started(self, index: int) -> None:
        """The actor has been started with its assignment."""
        self._known.add(index)

    def pending(self, index: int) -> Assignment | None:
        """The assignment that an actor at work has not been sent yet, if there is one."""
        if index in self._known or index not in self._current:
            return None
        self._known.add(index)
        return self._current[index]

    def _make(self, index: int) -> Assignment:
        first, self.next_seed = self.next_seed, self.next_seed + self._envs_per_actor
        return Assignment(index * self._envs_per_actor, self._environments, first, self._level)
