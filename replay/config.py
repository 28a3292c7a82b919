"""The replay section of a run's configuration."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from replay.shards import Shard
from transport.messages.fields import MOST_SHARDS
from transport.names import CODE, FIXED, RARE

LEAST_RECEIVE_BYTES = 1_000_000

LARGEST = 1e9  # chunks with an observation or reward of larger magnitude, or NaN, are rejected and counted


class ReplayConfig(Struct, frozen=True, forbid_unknown_fields=True):
    """The process that stores experience and samples batches from it, or several such processes."""

    shards: Annotated[
        int,
        Meta(
            ge=1,
            le=MOST_SHARDS,
            description="replay processes; each holds the experience of some of the actors, and an equal part of the capacity "
            "and of the budgets below. Use several where one cannot take what the actors send; rollouts need one",
        ),
    ] = 1
    capacity: Annotated[int, Meta(ge=1, description="transitions kept in memory, the newest ones (not used with rollouts)")] = (
        200_000
    )
    budget_bytes: Annotated[
        int,
        Meta(
            ge=1_000_000,
            description="memory that the replay process may use; it keeps fewer than replay.capacity transitions where "
            "they do not fit",
        ),
    ] = 4_000_000_000
    min_size: Annotated[int, Meta(ge=1, description="transitions collected before training starts (not used with rollouts)")] = (
        5_000
    )
    selector: Annotated[
        str,
        Meta(
            description="how items are sampled: prioritised, uniform, or package.module:Name for your own (not used "
            "with rollouts, which are taken oldest first, each once)",
            extra=CODE,
        ),
    ] = "prioritised"
    selector_options: Annotated[dict[str, bool | int | float | str], Meta(description="an option of the selector")] = {}
    max_policy_lag: Annotated[
        int,
        Meta(
            ge=1,
            description="policy versions that a rollout may be behind the newest weights; older rollouts are dropped and counted",
        ),
    ] = 1
    priority_exponent: Annotated[
        float, Meta(ge=0, le=1, description="alpha of prioritised replay: 0 samples uniformly, 1 in proportion to priority")
    ] = 0.6
    samples_per_insert_low: Annotated[
        float,
        Meta(
            ge=0,
            description="actors wait while fewer samples than this are drawn per inserted transition (not used with rollouts)",
        ),
    ] = 2.0
    samples_per_insert_high: Annotated[
        float,
        Meta(
            gt=0,
            description="the learner waits while more samples than this are drawn per inserted transition; raise it to "
            "train more on the same experience (not used with rollouts)",
        ),
    ] = 8.0
    samples_per_insert_limit: Annotated[
        float,
        Meta(
            ge=0,
            description="while simulators are so slow that the learner has to wait, samples per inserted transition may rise to "
            "this; 0: no further than samples_per_insert_high, and so it is where that alone is set (not used with rollouts "
            "or several shards)",
        ),
    ] = 0.0
    receive_bytes: Annotated[
        int,
        Meta(
            ge=LEAST_RECEIVE_BYTES,
            description="memory for chunks that have arrived but are not stored yet, shared by all actors",
            extra=RARE,
        ),
    ] = 256_000_000
    durable: Annotated[
        bool,
        Meta(
            description="write chunks to disk before they are acknowledged, so that a restart restores them (not used "
            "with rollouts)"
        ),
    ] = True
    state_seconds: Annotated[float, Meta(gt=0, description="time between saves of priorities and counters", extra=RARE)] = 30.0
    codec: Annotated[
        Literal["none", "lz4", "zstd"],
        Meta(description="compression of images between actors and replay and on disk; zstd is smaller, lz4 faster"),
    ] = "lz4"

    demonstrations: Annotated[
        str,
        Meta(
            description="experience from elsewhere, of which each batch has a share: a run's folder, FILE.npz, a folder of "
            "Parquet files, or minari:ID; empty: none (not used with rollouts)",
            extra=FIXED,
        ),
    ] = ""
    demonstration_share: Annotated[float, Meta(ge=0, le=0.5, description="share of a batch that is demonstrations")] = 0.25
    demonstration_steps: Annotated[
        int, Meta(ge=0, description="environment steps over which demonstration_share falls to 0; 0: it stays")
    ] = 0

    human_share: Annotated[
        float,
        Meta(
            ge=0,
            le=0.5,
            description="share of a batch that is human steps, while there are any: steps in which a person steered an actor",
        ),
    ] = 0.25
    human_capacity: Annotated[
        int,
        Meta(
            ge=1,
            description="number of human steps that are kept, the newest ones; they do not count towards replay.capacity "
            "and replay.budget_bytes",
            extra=RARE,
        ),
    ] = 20_000

    @property
    def of_one_shard(self) -> ReplayConfig:
        """The part of one shard: what counts items or bytes is divided among all."""
        if self.shards == 1:
            return self
        return structs.replace(
            self,
            capacity=-(-self.capacity // self.shards),
            min_size=-(-self.min_size // self.shards),
            budget_bytes=self.budget_bytes // self.shards,
            demonstration_steps=-(-self.demonstration_steps // self.shards),
            human_capacity=-(-self.human_capacity // self.shards),
            receive_bytes=max(self.receive_bytes // self.shards, LEAST_RECEIVE_BYTES),
        )


class ReplayProcess(Struct, frozen=True, forbid_unknown_fields=True):
    """settings/replay.json; with several shards settings/replay-I.json, where `replay` is the part of shard I."""

    seed: int
    replay: ReplayConfig
    leased: int = 0  # transitions, or whole chunks, in all slots of the learner's shared memory
    shard: int = 0  # index
    offline: bool = False  # the demonstrations are all experience

    @property
    def place(self) -> Shard:
        return Shard(self.shard, self.replay.shards)
