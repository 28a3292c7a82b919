"""The replay section of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct


class ReplayConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """How much experience is kept, and how it is drawn."""

    capacity: Annotated[int, Meta(ge=1, description="transitions kept at most (rollouts are not kept)")] = 200_000
    budget_bytes: Annotated[int, Meta(ge=1_000_000, description="bytes that the replay process may take at most")] = 4_000_000_000
    min_size: Annotated[int, Meta(ge=1, description="transitions before the first batch is served (not of rollouts)")] = 5_000
    selector: Annotated[
        str,
        Meta(
            description="how items are drawn: prioritised, uniform or package.module:Name; rollouts come oldest first, each once"
        ),
    ] = "prioritised"
    selector_options: Annotated[
        dict[str, bool | int | float | str], Meta(description="an option of the selector, such as one of your own")
    ] = {}
    max_policy_lag: Annotated[
        int, Meta(ge=1, description="versions that a rollout may be behind when it is drawn; older ones are dropped")
    ] = 1
    priority_exponent: Annotated[float, Meta(ge=0, le=1, description="alpha: 0 draws uniformly, 1 by priority")] = 0.6
    samples_per_insert_low: Annotated[
        float, Meta(ge=0, description="actors wait when fewer samples than this are drawn per insert (not of rollouts)")
    ] = 2.0
    samples_per_insert_high: Annotated[
        float, Meta(gt=0, description="the learner waits above this many samples per insert (not for rollouts)")
    ] = 8.0
    receive_bytes: Annotated[int, Meta(ge=1_000_000, description="bytes of unacknowledged chunks, all actors together")] = (
        256_000_000
    )
    reward_limit: Annotated[
        float, Meta(gt=0, description="chunks with a reward further from 0 are rejected and counted, as those with a NaN are")
    ] = 1e9
    durable: Annotated[
        bool, Meta(description="acknowledged chunks are on disk and restored at the next start (not rollouts)")
    ] = True
    fsync_seconds: Annotated[float, Meta(gt=0, description="a power cut loses at most about this much of them")] = 5.0
    state_seconds: Annotated[float, Meta(gt=0, description="time between saves of priorities and counters")] = 30.0
    codec: Annotated[Literal["none", "lz4", "zstd"], Meta(description="compression of image columns on the wire")] = "lz4"


class ReplayProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """settings/replay.json."""

    seed: int
    replay: ReplayConfig
    leased: int = 0  # transitions, or whole chunks, that may lie in the learner's shared memory at once
