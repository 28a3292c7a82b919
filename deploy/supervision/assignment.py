"""Which of the run's environments each actor has: how much each explores follows, and with which seeds they begin."""

from __future__ import annotations

from msgspec import structs

from transport.messages import Assignment


class Assignments:
    """One assignment per actor. No seed is used twice, so that no two incarnations of actors see the same episodes."""

    def __init__(self, actors: int, envs_per_actor: int, next_seed: int, level: int = 0) -> None:
        """`next_seed` is the first that is free, `level` the curriculum's."""
        self._envs_per_actor = envs_per_actor
        self.next_seed = next_seed
        self._level = level
        self.renew(actors)

    def renew(self, actors: int) -> None:
        """Makes all assignments anew: the ladder of exploration is spread over the environments that there are now."""
        self._environments = actors * self._envs_per_actor
        self._current = {index: self._make(index) for index in range(actors)}
        self._known: set[int] = set()  # actors that have been started with theirs, or have been sent it

    def set_level(self, level: int) -> None:
        """The curriculum's level from now on; environments and seeds stay."""
        self._level = level
        self._current = {index: structs.replace(one, level=level) for index, one in self._current.items()}
        self._known = set()

    def for_start(self, index: int) -> Assignment:
        """For an actor about to start, with other seeds than its incarnation before had. Once it has been started: `started`."""
        if index in self._known:
            self._known.remove(index)
            self._current[index] = self._make(index)
        return self._current[index]

    def started(self, index: int) -> None:
        """The actor has been started with its assignment."""
        self._known.add(index)

    def news(self, index: int) -> Assignment | None:
        """For an actor at work: its assignment, if it does not know it yet."""
        if index in self._known or index not in self._current:
            return None
        self._known.add(index)
        return self._current[index]

    def _make(self, index: int) -> Assignment:
        first, self.next_seed = self.next_seed, self.next_seed + self._envs_per_actor
        return Assignment(index * self._envs_per_actor, self._environments, first, self._level)
