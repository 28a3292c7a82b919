"""Shards: several replay processes that hold a part of a run's experience each. With one shard the process is called `replay`."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

KEY_BITS = 56  # of an item's key within its shard; the shard's index is above them


@dataclass(frozen=True)
class Shard:
    """One of `count` shards."""

    index: int = 0
    count: int = 1

    @property
    def name(self) -> str:
        """The name of its process, its endpoint and its files."""
        return shard_names(self.count)[self.index]


WHOLE = Shard()


def shard_names(count: int) -> tuple[str, ...]:
    return ("replay",) if count == 1 else tuple(f"replay-{index}" for index in range(count))


def shard_of(actor: str, count: int) -> Shard:
    """The shard that takes an actor's experience. All shards get about the same number of actors.

    Rendezvous hashing: Thaler and Ravishankar 1998, section 3 ("highest random weight").
    """
    weights = [hashlib.blake2b(f"{index} {actor}".encode(), digest_size=8).digest() for index in range(count)]
    return Shard(weights.index(max(weights)), count)
