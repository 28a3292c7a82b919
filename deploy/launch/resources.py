"""Checks that this machine has the cores, the memory, the disk and the file that a run needs."""

from __future__ import annotations

import shutil
from pathlib import Path

from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from learner.saving.older import read_any
from learner.weights.checkpoint import CheckpointError
from replay.log.demonstrations import ring_bytes
from replay.shards import shard_names, shard_of
from replay.table.layout import capacity_chunks, layout, overhead_bytes, slot_bytes
from transport.experience import ExperienceSpec
from transport.run_dir import RunDir
from transport.sockets.keys import actor_names
from transport.sockets.limits import DESCRIPTORS_SHARE, raise_descriptor_limit
from transport.system import core_count, free_memory

LEAST_DISK_BYTES = 200_000_000
COMPRESSION = 4  # of image columns on disk, a low estimate: emulators and simple scenes reach 10 and more
ACTORS_PER_CORE = 16  # with more, processes wait longer for a core than they may be silent
ACTOR_BYTES = 60_000_000  # of an actor without torch and without its simulator, a low estimate
DESCRIPTORS_PER_ACTOR, OTHER_DESCRIPTORS = 4, 100  # in the supervisor, and in replay


class NoSpace(RuntimeError):
    """This machine has too little of something. The text says of what, and which setting to change."""


def check(config: RunConfig, spec: ExperienceSpec, run: RunDir) -> None:
    """Prints a note where the disk may become full, or a replay shard gets nothing. Raises NoSpace."""
    if shortages := find_shortages(config, spec, run):
        raise NoSpace("; ".join(shortages))
    for note in filter(None, (disk_note(config, spec, run), shards_note(config))):
        print(note, flush=True)


def find_shortages(config: RunConfig, spec: ExperienceSpec, run: RunDir) -> list[str]:
    """A line for everything that this machine has too little of, each with the setting that helps."""
    leased, wanted = config.learner.leased(spec), replay_bytes(config, spec)
    memory = free_memory()
    crowded = too_many_actors(config, max(memory - wanted, ACTOR_BYTES))
    folder, disk = _disk(run)
    batches = layout(spec, leased).slot_bytes  # which are also a part of what replay wants
    checks = [
        (wanted <= memory,
         f"replay wants {_gigabytes(wanted)} but {_gigabytes(memory)} of memory are free; "
         "lower --replay.capacity or --replay.budget-bytes"),
        (not config.offline or batches <= memory,
         f"batches want {_gigabytes(batches)} but {_gigabytes(memory)} of memory are free; "
         "lower --learner.batch-size, --learner.prefetch or --learner.processes"),
        (not crowded, f"{crowded}; lower --actors, or start them nevertheless with --deploy.overcommit true"),
        (disk >= LEAST_DISK_BYTES,
         f"{folder} has {_gigabytes(disk)} free; a run needs {_gigabytes(LEAST_DISK_BYTES)} at least"),
    ]  # fmt: skip
    return [complaint for enough, complaint in checks if not enough]


def replay_bytes(config: RunConfig, spec: ExperienceSpec) -> int:
    """What the processes of replay take, without demonstrations; nothing in an offline run."""
    leased, replay = config.learner.leased(spec), config.replay.of_one_shard
    ring = capacity_chunks(spec, replay, leased) * slot_bytes(spec)
    return 0 if config.offline else config.replay.shards * (ring + overhead_bytes(spec, replay, leased))


def check_demonstrations(config: RunConfig, spec: ExperienceSpec, folder: Path) -> None:
    """Raises NoSpace where the demonstrations in a folder do not fit into memory beside replay, ConfigError where they are
    damaged."""
    try:
        wanted = ring_bytes(folder, spec)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    memory = free_memory()
    if (others := replay_bytes(config, spec)) + wanted > memory:
        beside = f" beside replay's {_gigabytes(others)}" if others else ""
        raise NoSpace(
            f"the demonstrations want {_gigabytes(wanted)}{beside} but {_gigabytes(memory)} of memory are free; take fewer "
            "episodes (`headrace dataset export --best 20%`), or lower --replay.capacity or --replay.budget-bytes"
        )


def too_many_actors(config: RunConfig, memory_bytes: float) -> str:
    """Why the actors do not fit into so much memory and into this machine; empty if they do."""
    descriptors = raise_descriptor_limit() * DESCRIPTORS_SHARE - OTHER_DESCRIPTORS
    actors, connected = min(config.actors.count, config.deploy.local_actors), config.actors.count  # to hosts as well
    limits = (
        (actors, core_count() * ACTORS_PER_CORE, f"cores ({ACTORS_PER_CORE} on each)"),
        (actors, int(memory_bytes // ACTOR_BYTES), f"memory ({_gigabytes(ACTOR_BYTES)} for each, without its simulator)"),
        (connected, int(descriptors // DESCRIPTORS_PER_ACTOR), "file descriptors (`ulimit -n`)"),
    )
    over = [(max(fit, 1), wanted, what) for wanted, fit, what in limits if wanted > max(fit, 1)]
    if not over or config.deploy.overcommit:
        return ""
    fit, wanted, what = min(over)
    return f"{wanted:,} actors are more than the {fit:,} for which this machine has {what}"


def disk_note(config: RunConfig, spec: ExperienceSpec, run: RunDir) -> str:
    """A line where the segment log may fill the disk. A full disk costs a restart its experience, not the run."""
    if config.offline or not config.replay.durable or spec.unit == "rollouts":
        return ""
    chunks = config.replay.shards * capacity_chunks(spec, config.replay.of_one_shard, config.learner.leased(spec))
    rows = chunks * spec.rows(spec.chunk_length)
    row_bytes = sum(column.row_bytes / (1 if column.codec == "none" else COMPRESSION) for column in spec.columns)
    folder, disk = _disk(run)
    on_disk = sum(path.stat().st_size for path in run.segments.rglob("*.segment"))
    growth = rows * row_bytes - on_disk
    if growth + LEAST_DISK_BYTES <= disk:
        return ""
    return (
        f"note: replay's log may grow by {_gigabytes(growth)} and {folder} has {_gigabytes(disk)} free; when it is full the run "
        "goes on without it; lower --replay.capacity, or --replay.durable false"
    )


def shards_note(config: RunConfig) -> str:
    """A line where no actor sends its experience to some shard."""
    count = config.replay.shards
    owners = {shard_of(name, count).name for name in actor_names(config.actors.count)}
    if config.offline or not (idle := [name for name in shard_names(count) if name not in owners]):
        return ""
    return (
        f"note: none of the {config.actors.count} actors sends to {', '.join(idle)}, whose part of the capacity stays empty; "
        "take fewer --replay.shards, or several times as many actors"
    )


def _disk(run: RunDir) -> tuple[Path, int]:
    """The folder that the run is in, or will be, and the bytes free there."""
    folder = next(path for path in (run.path, *run.path.parents) if path.exists())
    return folder, shutil.disk_usage(folder).free


def _gigabytes(number: float) -> str:
    return f"{number / 1e9:.1f} GB" if number >= 1e9 else f"{number / 1e6:.0f} MB"


def check_weights(name: str) -> None:
    """Raises ConfigError where a run cannot begin with the file `name`, if there is one."""
    if name and not Path(name).is_file():
        raise ConfigError(f"--learner.weights: there is no file {name}")
    try:
        if name:
            read_any(Path(name))
    except CheckpointError as error:
        raise ConfigError(f"--learner.weights {error}") from error
