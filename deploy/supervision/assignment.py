"""Which environments of a run each actor has: who explores how much, and with which seeds."""

from __future__ import annotations

from msgspec import structs

from transport.messages import Assignment


class Seats:
    """A seat per actor. No seed is handed out twice, so that no two lives of actors see the same episodes."""

    def __init__(self, actors: int, envs_per_actor: int, next_seed: int, level: int = 0) -> None:
        """`next_seed` is the first that is free, `level` the curriculum's."""
        self._envs_per_actor = envs_per_actor
        self.next_seed = next_seed
        self._level = level
        self.renew(actors)

    def renew(self, actors: int) -> None:
        """Hands all seats out anew: the ladder of exploration is spread over the environments that there are now."""
        self._environments = actors * self._envs_per_actor
        self._held = {index: self._seat(index) for index in range(actors)}
        self._told: set[int] = set()

    def set_level(self, level: int) -> None:
        """The curriculum's level from now on; places and seeds stay."""
        self._level = level
        self._held = {index: structs.replace(seat, level=level) for index, seat in self._held.items()}
        self._told = set()

    def take(self, index: int) -> Assignment:
        """For an actor about to start, with other seeds than its life before had."""
        if index in self._told:
            self._held[index] = self._seat(index)
        self._told.add(index)
        return self._held[index]

    def news(self, index: int) -> Assignment | None:
        """For an actor at work: its seat, if it has not been told of it."""
        if index in self._told or index not in self._held:
            return None
        self._told.add(index)
        return self._held[index]

    def _seat(self, index: int) -> Assignment:
        first, self.next_seed = self.next_seed, self.next_seed + self._envs_per_actor
        return Assignment(index * self._envs_per_actor, self._environments, first, self._level)
