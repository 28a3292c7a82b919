"""The bottleneck of a run in one sentence, from the newest records of its processes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deploy.reporting.flow import WAITS, actors_wait
from learner.algorithms.base import Limit
from transport.metrics import Record

# Shares of a process's time, but for the last.
BUSY = 0.8
SATURATED = 0.95
ALL_CORES = 0.9  # of all cores together
STARVED = 0.25  # a process that waits longer than this for a core is limited by the processor
LEARNS = 0.5  # a learner that updates for less of its time needs no faster device
COMPUTES = 0.5  # an actor that computes less sleeps in its simulator and needs no core of its own
TIGHT = 2.0  # samples per insert: under a band that ends below this most experience is used at most once


def bottleneck(
    actors: Sequence[Record],
    replay: Record,
    learner: Record,
    *,
    min_size: int,
    envs_per_actor: int,
    cores: int,
    cores_busy: float | None,
    band: bool,
    advice: Mapping[Limit, str],
    offline: bool = False,
) -> str:
    """Names what limits the run and what to change, as `limit (evidence) · advice`.

    A record is empty where a process has sent none. `cores_busy` is the share of all cores that is in use, None where unknown.
    `band`: a limiter keeps samples per insert within a band (not for rollouts, which are drawn once). `advice` is the
    algorithm's. `offline`: there are no actors.
    """
    actors = [record for record in actors if record]
    if not_yet := _not_yet_learning(actors, replay, learner, min_size, offline):
        return not_yet
    if offline:
        return _offline_limit(replay, learner)
    waiting = actors_wait(actors, replay)
    data_wait, updating = learner.get("data_wait_fraction", 0.0), learner.get("update_fraction", 0.0)
    blocked = replay.get("sample_hold_fraction", data_wait)  # by the limiter; the rest of data_wait is late batches
    full = cores_busy is not None and cores_busy >= ALL_CORES
    busy = _busy(replay)
    if busy >= BUSY and max(waiting, data_wait) > WAITS:
        return f"replay (busy {_percent(busy)}) · try a lower --replay.samples-per-insert-high or smaller batches"
    learner_starved = learner.get("starved_fraction", 0.0)
    starved = max(_mean(actors, "starved_fraction"), learner_starved)
    # The band lets a learner that could work wait: it, and not a core, decides how much is learned.
    idle = band and updating < LEARNS and learner_starved <= STARVED and max(waiting, blocked) > WAITS
    if starved > STARVED and not idle:
        return _cores_limit(actors, learner, starved, updating, cores)
    full = starved > STARVED or (full and _mean(actors, "processor_fraction", 1.0) > COMPUTES)
    waited_for = waiting > WAITS and waiting >= blocked
    if waited_for:
        return _learner_limits(waiting, updating, replay, full, band, advice)
    if blocked > WAITS and band and replay.get("band_high", TIGHT) < TIGHT:
        return _limiter_limits(blocked, replay)
    actors_limit = _actors_limit(actors, replay, blocked, envs_per_actor, cores, full, band, advice)
    if blocked > WAITS:
        return actors_limit
    if updating >= SATURATED:
        return (
            f"learner (updates take {_percent(updating)} of its time, no process waits) · "
            "try a faster device or a smaller batch; more actors would only have to wait"
        )
    if full:
        evidence = f"all {cores} cores busy, learner {_percent(updating)} in updates, {_percent(data_wait)} waiting"
        gpu = ", or a GPU for the learner," if updating >= LEARNS else ""
        return f"processor ({evidence}) · more actors will not help; more or faster cores{gpu} would"
    if data_wait > WAITS:
        return f"batches (learner waits {_percent(data_wait)}, not for the limiter) · try a higher --learner.prefetch"
    if updating < BUSY:
        return actors_limit
    return f"none (learner {_percent(updating)} in updates, no process waits) · try more actors and a faster learner device"


def _not_yet_learning(actors: Sequence[Record], replay: Record, learner: Record, min_size: int, offline: bool) -> str:
    """The state of a run before its first updates; empty after them."""
    if not replay or not learner or not (actors or offline):
        return "starting · the first figures come a few seconds after every process is ready"
    if learner.get("compiling"):
        return "compiling · the learner compiles its update, which may take minutes and is kept for the next start"
    items = replay.get("items", 0.0)
    if items < min_size and not learner.get("updates"):
        return f"filling replay {items:,.0f}/{min_size:,} · learning starts when it is full enough"
    return ""


def _offline_limit(replay: Record, learner: Record) -> str:
    data_wait, updating = learner.get("data_wait_fraction", 0.0), learner.get("update_fraction", 0.0)
    if data_wait > WAITS:
        return f"replay (busy {_percent(_busy(replay))}, learner waits {_percent(data_wait)}) · try a higher --learner.prefetch"
    return f"learner (updates take {_percent(updating)} of its time) · try a faster device or a smaller batch"


def _learner_limits(waiting: float, updating: float, replay: Record, full: bool, band: bool, advice: Mapping[Limit, str]) -> str:
    if updating >= LEARNS or not band:
        fewer = ["fewer actors"] if full else []
        lower = "a lower --replay.samples-per-insert-low" if band else ""
        others = ["a faster device", "a smaller batch", *filter(None, [lower])]
        ways = [advice["learner"], "a faster device"] if "learner" in advice else [*fewer, *others]
        return (
            f"learner (updates take {_percent(updating)} of its time, actors wait {_percent(waiting)} of theirs) · "
            f"try {', '.join(ways[:-1])} or {ways[-1]}"
        )
    return (
        f"limiter (actors wait {_percent(waiting)} for samples/insert {replay.get('samples_per_insert', 0):.1f} "
        f"to reach the band {_band(replay)}) · try a lower --replay.samples-per-insert-low"
    )


def _limiter_limits(blocked: float, replay: Record) -> str:
    return (
        f"limiter (learner waits {_percent(blocked)}, samples/insert {replay.get('samples_per_insert', 0):.1f} is at the "
        f"end of the band {_band(replay)}) · try a higher --replay.samples-per-insert-high"
    )


def _band(replay: Record) -> str:
    return f"{replay.get('band_low', 0):g}-{replay.get('band_high', 0):g}"


def _cores_limit(actors: Sequence[Record], learner: Record, starved: float, updating: float, cores: int) -> str:
    waiting = "learner waits" if learner.get("starved_fraction", 0.0) >= starved else "actors wait"
    fewer = "fewer actors, " if len(actors) > 1 else ""
    gpu = ", more cores or a GPU for the learner" if updating >= LEARNS else " or more cores"
    core = "the only core" if cores == 1 else f"one of {cores} cores"
    return (
        f"processor ({waiting} {_percent(starved)} of the time for {core}) · "
        f"more actors will not help; try {fewer}nothing else beside the run{gpu}"
    )


def _actors_limit(
    actors: Sequence[Record],
    replay: Record,
    blocked: float,
    envs_per_actor: int,
    cores: int,
    full: bool,
    band: bool,
    advice: Mapping[Limit, str],
) -> str:
    stepping, acting = _mean(actors, "env_step_fraction"), _mean(actors, "act_fraction")
    if any("programs" in record for record in actors):
        connected = sum(record.get("programs", 0.0) for record in actors)
        return f"programs ({connected:.0f} connected) · connect more of them, or one with more environments"
    if acting > stepping:
        limit, evidence = "inference", f"actors {_percent(acting)} in the policy"
    else:
        limit, evidence = "simulators", f"actors {_percent(stepping)} in env.step"
    if blocked > WAITS:
        evidence += f", learner waits {_percent(blocked)}"
    if full:
        high = replay.get("band_high")
        more = f" (now {high:g})" if high else ""
        banded = f"try a higher --replay.samples-per-insert-high{more}" if band else "try more or faster cores"
        change = f"all {cores} cores are busy, more actors will not help; {advice.get('actors', banded)}"
    elif acting > stepping:
        change = f"try more environments per actor (--envs-per-actor, now {envs_per_actor}): one inference serves them all"
    else:
        change = "try more actors"
    return f"{limit} ({evidence}) · {change}"


def _busy(replay: Record) -> float:
    # Its one thread works or waits, and every wait is measured.
    if "busy_fraction" in replay or "idle_fraction" not in replay:
        return replay.get("busy_fraction", 0.0)
    return 1.0 - sum(replay.get(f"{name}_fraction", 0.0) for name in ("idle", "insert_hold", "sample_hold"))


def _mean(records: Sequence[Record], name: str, otherwise: float = 0.0) -> float:
    return sum(record.get(name, otherwise) for record in records) / len(records)


def _percent(share: float) -> str:
    return f"{min(share, 1.0):.0%}"
