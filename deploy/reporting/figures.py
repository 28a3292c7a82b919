"""The figures of a run, each once: its name in the records of a process, its tag in the sinks, its place in status.json and on
the page. Those of an evaluation are in actors/figures.py, because the evaluator reads them too. What the learner reports beyond
these is its algorithm's: the sinks have it as `train/…`, and the page has a chart of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from actors.figures import EVALUATION, Figure, Form
from replay.shards import shard_names
from transport.metrics import INFO, Record

STATUS = ("status",)
ACTORS = (
    Figure("episode_return", tag="rollout/ep_rew_mean"),
    Figure("episode_length", tag="rollout/ep_len_mean"),
    Figure("success_rate", tag="rollout/success_rate"),
)
REPLAY = (
    Figure("items", "count", tag="replay/size", shown=STATUS),
    *(Figure(name, "count", shown=STATUS) for name in ("capacity", "inserted_steps", "sampled_items")),
    Figure("bytes", "bytes", shown=STATUS),
    *(Figure(name, "count", shown=STATUS) for name in ("duplicates", "rejected", "quarantined")),
    Figure("samples_per_insert", tag="replay/samples_per_insert", shown=STATUS),
    Figure("human_steps", "count", tag="replay/human_steps", shown=STATUS),
)
LEARNER = (
    Figure("lag_mean", tag="policy/lag_mean"),
    *(Figure(name, "count", shown=STATUS) for name in ("epoch", "updates", "policy_version")),
    Figure("updates_per_second", tag="learner/updates_per_second", shown=STATUS),
    Figure("data_wait_fraction", "percent", tag="learner/data_wait_fraction", shown=STATUS),
    Figure("rejected_weights", "count"),
)
INFERENCE = (
    *(Figure(name, shown=STATUS) for name in ("rows_per_second", "rows_per_pass")),
    Figure("policy_version", "count", shown=STATUS),
)
DERIVED = ("_per_second", "_per_second_60", "_fraction", "_seconds")  # end the names of what does not measure training


class Chart(NamedTuple):
    """A chart of the page: a line for each figure, or one that is the first figure divided by `per`."""

    section: str
    title: str
    form: Form
    lines: Mapping[str, str]  # figures, such as replay.items, and what each line is called
    dashed: tuple[str, ...] = ()
    per: str = ""


CHARTS = (
    Chart("speed", "Environment steps per second", "count", {"replay.inserted_steps_per_second": "steps/s"}),
    Chart("speed", "Waiting time", "percent", {"actors.wait_credit_fraction": "actors for replay",
          "learner.data_wait_fraction": "learner for batches", "learner.starved_fraction": "learner for the processor"}),
    Chart("speed", "What actors do", "percent", {"actors.env_step_fraction": "simulate",
          "actors.act_fraction": "choose actions"}),
    Chart("speed", "Updates per second", "number", {"learner.updates_per_second": "updates/s"}),
    Chart("replay", "Items", "count", {"replay.items": "items", "replay.capacity": "capacity"}, ("replay.capacity",)),
    Chart("replay", "Samples per insert and their band", "number", {"replay.samples_per_insert": "samples/insert",
          "replay.band_low": "low", "replay.band_high": "high"}, ("replay.band_low", "replay.band_high")),
    Chart("replay", "Age of what is learned from, in policy versions", "number", {"learner.lag_mean": "age"}),
    Chart("replay", "Bytes", "bytes", {"replay.bytes": "in memory", "replay.log_bytes": "log on disk"}),
    Chart("replay", "Compression", "number", {"actors.raw_bytes_per_second": "raw / sent"}, per="actors.sent_bytes_per_second"),
    Chart("replay", "Time of its thread", "percent", {"replay.busy_fraction": "works",
          "replay.insert_hold_fraction": "makes actors wait", "replay.sample_hold_fraction": "makes the learner wait"}),
    Chart("learner", "Time", "percent", {"learner.update_fraction": "updates", "learner.data_wait_fraction": "waits for data",
          "learner.copy_fraction": "copies", "learner.checkpoint_fraction": "saves"}),
)  # fmt: skip
NOT_CHARTED = ("actors.lag", "replay.sampled_items_per_second")  # kept for the flow through the run
# Figures of several shards of replay: about the same in all of them; and those of which the slowest shard's counts.
EVERYWHERE = ("band_low", "band_high", "time")
SLOWEST = ("busy_fraction", "sample_hold_fraction", "uptime_seconds")  # a batch waits for the last shard


def shown_in(figures: Sequence[Figure], place: str) -> tuple[str, ...]:
    """The names of those that are shown there."""
    return tuple(figure.name for figure in figures if place in figure.shown or (place == "page" and figure.chart))


def kept(process: str) -> tuple[str, ...]:
    """The figures of `actors` or `replay` whose history is kept."""
    drawn = [name for chart in CHARTS for name in (*chart.lines, chart.per)]
    beside = [figure.training for figure in EVALUATION]
    found = (name.partition(".") for name in (*beside, *drawn, *NOT_CHARTED))
    return tuple(dict.fromkeys(name for owner, _, name in found if owner == process))


def charts() -> list[dict[str, Any]]:
    """The charts of the page: those of an evaluation's figures, then the others."""
    measured = sorted((figure for figure in EVALUATION if figure.chart), key=lambda one: one.form == "count")  # lengths last
    learning = [
        {"section": "learning", "title": one.chart, "form": one.form, "name": one.name, "training": one.training}
        for one in measured
    ]
    return [*learning, *(chart._asdict() for chart in CHARTS)]


def tags(
    actors: Mapping[int, Record],
    replay: Record,
    learner: Record,
    evaluation: Record,
    steps: float,
    shards: Mapping[str, Record] = MappingProxyType({}),
) -> Record:
    """The values for the sinks, from the newest records of the processes; those without a figure are left out. `shards`: of
    replay, by name; `replay` is then all of them together."""
    records = [record for record in actors.values() if record]
    found: dict[str, float | None] = {figure.tag: _mean(records, figure.name) for figure in ACTORS}
    found["time/fps"] = sum(record.get("steps_per_second", 0.0) for record in records) if records else None
    found["time/total_timesteps"] = steps
    for record, figures in ((evaluation, EVALUATION), (replay, REPLAY), (learner, LEARNER)):
        found |= {figure.tag: record.get(figure.name) for figure in figures if figure.tag}
    keywords = dict.fromkeys(name for record in records for name in record if name.startswith(INFO))
    found |= {f"rollout/{name}": _mean(records, name) for name in keywords}
    found |= {f"eval/{name}": value for name, value in evaluation.items() if name.startswith(INFO)}
    found |= {f"actor/{index}/fps": record.get("steps_per_second") for index, record in actors.items()}
    for name, record in shards.items():
        place = name.replace("-", "/")
        found |= {figure.tag.replace("replay", place, 1): record.get(figure.name) for figure in REPLAY if figure.tag}
    counters = {name.removesuffix("_per_second") for name in learner if name.endswith("_per_second")}
    known = {figure.name for figure in LEARNER} | counters
    found |= {f"train/{name}": learner[name] for name in learner if name not in known and not name.endswith(DERIVED)}
    return {tag: value for tag, value in found.items() if value is not None}


def _mean(records: Sequence[Record], name: str) -> float | None:
    values = [record[name] for record in records if name in record]
    return sum(values) / len(values) if values else None


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
