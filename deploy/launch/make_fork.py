"""Makes a second run from a point of a first one, which may be up: its folder has everything with which a resume goes on."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from actors.trust import FLAG
from deploy import runs, settings
from deploy.config import trust
from deploy.config.checks import changes_refused_on_resume
from deploy.config.files import Tree, as_tree, leaves, lookup, write_config
from deploy.config.layers import layers, load_run_config, resolve
from deploy.config.run import RunConfig, steps_name
from deploy.errors import ConfigError
from deploy.launch.resume import EPOCHS
from deploy.launch.sums import write_sums
from deploy.recorded.fork_point import ForkPoint
from deploy.recorded.history import steps_in
from deploy.recorded.run import RecordedRun
from deploy.reporting.events import RunEvent
from learner.weights.checkpoint import epoch_of
from learner.weights.errors import CheckpointError
from learner.weights.shared_checkpoint import share_checkpoint
from replay.log.segments import LogRefused
from replay.log.shared_segments import SharedSegments, share_segments
from transport.files.writing import link_or_copy, replace, sync_folder, write_durably
from transport.run_dir import RunDir
from transport.text import duration

LISTED = 10  # checkpoints, where none is old enough


@dataclass(frozen=True)
class ForkRequest:
    """What the user has typed. At most one of `seconds`, `steps` and `checkpoint` is there; without any the fork begins with the
    newest checkpoint and all experience, as a resume would."""

    run: RunDir
    changes: Tree
    name: str | None = None
    seconds: float | None = None
    steps: int | None = None
    checkpoint: Path | None = None
    trusted: bool = False

    @property
    def newest(self) -> bool:
        return self.seconds is None and self.steps is None and self.checkpoint is None


class Point(NamedTuple):
    """A checkpoint, and how long the run had been up and which steps it had done when it was written."""

    path: Path
    seconds: float
    steps: int

    def __str__(self) -> str:
        return f"{duration(self.seconds)} (step {self.steps:,})"


class Fork(NamedTuple):
    """A fork that has been made. `written`: when its checkpoint was."""

    run: RunDir
    point: ForkPoint
    written: Point
    experience: SharedSegments
    before: dict[str, object]  # the values that were changed, by dotted key


def make_fork(request: ForkRequest, say: Callable[[str], None]) -> Fork:
    """Makes the fork's folder, whole or not at all. `say` gets a line every few seconds.

    Raises ConfigError, AlreadyUp, OSError.
    """
    run = request.run
    if request.name is not None and not runs.NAME.fullmatch(request.name):
        raise ConfigError(f"{request.name!r} is not a name for a run: letters, digits, dots, dashes and underscores only")
    before, config = _configured(request)
    fork = runs.run_dir(request.name or _free_name(run))
    with runs.locked(fork):
        if fork.path.exists():
            raise ConfigError(f"run {fork.name} exists: give the fork another name")
        # Beside the locks, where a command that lists runs does not see it. One that was killed may have left its own.
        partial = RunDir(fork.lock.with_name(f".{fork.name}"))
        shutil.rmtree(partial.path, ignore_errors=True)
        try:
            made = _fill(partial, request, before, config, say)
            replace(partial.path, fork.path)
            sync_folder(fork.path.parent)
        finally:
            shutil.rmtree(partial.path, ignore_errors=True)
        try:
            trust.mark(fork, as_tree(config))
        except OSError as error:
            say(f"could not remember that this run is your own ({error.strerror}): a resume will need {FLAG}")
    return made._replace(run=fork)


def _configured(request: ForkRequest) -> tuple[RunConfig, RunConfig]:
    """The configuration of the run, and that of the fork. Raises ConfigError."""
    run = request.run
    before = load_run_config(run, request.trusted)
    stack = layers(request.changes, stopped=run, trusted=request.trusted)
    config = resolve(stack)
    if changed := changes_refused_on_resume(before, config):
        raise ConfigError(
            f"--set cannot change {', '.join(changed)}: weights and experience of run {run.name} were made for it; "
            "a new run can have it (`headrace up --run NAME`)"
        )
    if config.replay.shards != before.replay.shards:
        raise ConfigError(
            f"--set cannot change replay.shards: the experience is in {before.replay.shards}; leave it out, and redistribute "
            "that of the fork with `headrace reshard`"
        )
    return before, config


def _free_name(run: RunDir) -> str:
    names = (f"{run.name[:80]}-fork-{number}" for number in count(1))
    return next(name for name in names if not runs.run_dir(name).path.exists())


def _fill(target: RunDir, request: ForkRequest, before: RunConfig, config: RunConfig, say: Callable[[str], None]) -> Fork:
    """Writes all files of the fork. Raises ConfigError, OSError."""
    run = request.run
    spec, up = runs.read_spec_of(run), runs.is_up(run)
    recorded = RecordedRun(run)
    recorded.read(0.0)  # of the actors nothing is needed
    target.create()
    source = _chosen(request, recorded)
    try:
        metadata = share_checkpoint(run, source, target)
        written = _point(recorded, source, int(metadata["epoch"]))
        if metadata.get("spec_digest") != spec.digest:
            raise ConfigError(f"--checkpoint {source}: made for another experience spec than that of run {run.name}")
        experience = share_segments(run.segments, target.segments, spec, up, None if request.newest else written.steps, say)
        share_segments(run.human_steps, target.human_steps, spec, up, None, say)  # as demonstrations, whenever they were given
    except CheckpointError as error:
        raise ConfigError(f"{error}; name another one with --checkpoint") from error
    except LogRefused as error:
        raise ConfigError(f"run {run.name}: {error}") from error
    seconds = _now(recorded) if request.newest and experience.steps else written.seconds
    steps = experience.steps or written.steps
    if 0 < config.total_steps <= steps:
        raise ConfigError(
            f"the fork would begin with {steps:,} of {config.total_steps:,} {steps_name(config)} done: raise that with "
            "--set total-steps=N, or begin earlier with --at or --step"
        )
    changed = {key: value for key, value in leaves(as_tree(config)) if lookup(as_tree(before), key) != value}
    earlier = [mean for at, mean in zip(*recorded.returns, strict=True) if at <= seconds]
    version = int(metadata["policy_version"])
    began, mean = recorded.clock.first, earlier[-1] if earlier else None
    point = ForkPoint(run.name, source.name, int(metadata["epoch"]), version, seconds, steps, began, mean, changed)
    _write(target, run, config, point)
    old = {key: lookup(as_tree(before), key) for key in changed}
    return Fork(target, point, written, experience, old)


def _write(target: RunDir, run: RunDir, config: RunConfig, point: ForkPoint) -> None:
    """The files besides weights and experience. Raises OSError."""
    for path in (run.spec, run.spaces, run.policy, run.device, run.curriculum):
        if path.is_file():
            shutil.copyfile(path, target.path / path.relative_to(run.path))
    if run.demonstrations.is_dir():
        target.demonstrations.mkdir()
        for path in run.demonstrations.iterdir():
            link_or_copy(path, target.demonstrations / path.name)
    settings.write(target, config)
    text = f"from {point.run} at step {point.steps:,}, {point.checkpoint}"
    newest = max(path.stat().st_mtime for path in target.checkpoints.iterdir())
    event = RunEvent(newest, "forked", "supervisor", text)
    write_durably(target.events, msgspec.json.encode(event) + b"\n")
    write_durably(target.fork_point, msgspec.json.encode(point))
    write_durably(target.config, write_config(config))
    write_sums(target)


# ---- the point


def _chosen(request: ForkRequest, recorded: RecordedRun) -> Path:
    """The checkpoint to begin with. Raises ConfigError."""
    run = request.run
    if request.checkpoint is not None:
        places = request.checkpoint, run.checkpoints / request.checkpoint
        if (found := next((path for path in places if path.is_file()), None)) is None:
            raise ConfigError(f"--checkpoint: there is no file {request.checkpoint}, nor one of that name in {run.checkpoints}")
        return found
    known = list(_points(recorded))
    if not known:
        raise ConfigError(
            f"run {run.name} has no checkpoint yet; `headrace checkpoint {run.name}` has a run that is up write one"
        )
    if request.newest:
        return known[-1].path
    before = [
        point
        for point in known
        if (request.seconds is None or point.seconds <= request.seconds)
        and (request.steps is None or point.steps <= request.steps)
    ]
    if not before:
        wanted = duration(request.seconds) if request.seconds is not None else f"step {request.steps:,}"
        more = f"the oldest {LISTED} of {len(known)} are" if len(known) > LISTED else "there are those"
        raise ConfigError(
            f"run {run.name} has no checkpoint from {wanted} or before: {more} of {', '.join(map(str, known[:LISTED]))}; "
            "a run keeps the newest --learner.keep-checkpoints and a few spread over its time"
        )
    return before[-1].path


def _points(recorded: RecordedRun) -> Iterator[Point]:
    """The full checkpoints of a run, the oldest first."""
    for path in sorted(recorded.run.checkpoints.glob(EPOCHS)):
        yield _point(recorded, path, epoch_of(path))


def _point(recorded: RecordedRun, path: Path, epoch: int) -> Point:
    """When the learner had done this epoch, by its records: the time of a file may be that of its copy."""
    grid, now = recorded.grid, _now(recorded)
    begin, epochs = grid.begin, grid.column("learner.epoch")
    there = np.isfinite(epochs)
    known = [recorded.fork.epoch if recorded.fork else 0, *epochs[there], recorded.newest.get("learner", {}).get("epoch") or 0.0]
    at = float(np.interp(epoch, np.maximum.accumulate(known), [begin.seconds, *grid.seconds()[there], now]))
    times, steps = [begin.seconds, *grid.seconds(), now], [begin.steps, *steps_in(grid), recorded.total.steps]
    return Point(path, at, round(np.interp(at, times, steps)))


def _now(recorded: RecordedRun) -> float:
    """How long the run has been up, by its newest record."""
    times = [float(record["time"] or 0.0) for record in recorded.newest.values()]
    return (recorded.clock.seconds(max(times)) if times else None) or recorded.begin.seconds
