"""The figures of several replay shards as those of one replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from replay.shards import shard_names
from transport.metrics import Record

EVERYWHERE = ("band_low", "band_high", "time")  # about the same in all shards
SLOWEST = ("busy_fraction", "sample_hold_fraction", "uptime_seconds")  # a batch waits for the last shard


def shard_records(records: Mapping[str, Record]) -> dict[str, Record]:
    """The newest records of the shards by name, in order; empty if replay is a single process."""
    several = (name for name in records if name.startswith("replay-"))
    return {name: records[name] for name in sorted(several, key=lambda name: int(name.partition("-")[2]))}


def replay_record(records: Mapping[str, Record]) -> Record:
    """The record of a single replay process, or the combined record of all shards; empty where there is none."""
    (alone,) = shard_names(1)
    return records[alone] if alone in records else combined([record for record in shard_records(records).values() if record])


def combined(shards: Sequence[Record]) -> Record:
    """Counts and rates are added and shares of time averaged; of the figures in SLOWEST the highest counts."""
    found: Record = {}
    for name in dict.fromkeys(name for shard in shards for name in shard):
        values = [shard[name] for shard in shards if name in shard]
        if name in EVERYWHERE or name in SLOWEST:
            found[name] = max(values)
        elif name.endswith("_fraction") or name == "samples_per_insert":
            found[name] = sum(values) / len(values)
        else:
            found[name] = sum(values)
    if {"samples_per_insert", "sampled_items", "inserted_steps"} <= found.keys():
        found["samples_per_insert"] = found["sampled_items"] / max(found["inserted_steps"], 1.0)
    return found
