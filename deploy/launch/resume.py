"""Checks that a stopped run can go on with the settings that are asked for now, and describes what it goes on with."""

from __future__ import annotations

import os
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from actors.envs.preflight.parent import may_hold_codes
from deploy import runs
from deploy.config.checks import changes_refused_on_resume
from deploy.config.files import leaves, lookup, read_run, read_toml
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.errors import ConfigError
from deploy.recorded.run import RecordedRun
from learner.description import PolicyDescription, read_description
from learner.weights.errors import CheckpointError
from replay.log.journal import STATE_FILE
from replay.log.segments import LogRefused
from replay.log.shard_folders import log_folders, stored_shards
from replay.log.state import read_state
from replay.shards import shard_names
from replay.table.layout import leaves_per_chunk
from transport.experience import ExperienceSpec, SpecError, read_spec
from transport.files import renamed
from transport.files.documents import Damaged, LineDecoder, open_file, read_bytes, read_document
from transport.run_dir import RunDir
from transport.text import listed

EPOCHS = "epoch-*.safetensors"
LAST_RECORD_BYTES = 65_536  # of a metrics file: more than one record takes
MEND = "`headrace fsck RUN --repair` makes it from the settings of the processes"
ANEW = "use --fresh to start anew or --run for another run"


class Record(Struct):
    """The fields that are read of a record of replay."""

    items: Annotated[float, Meta(ge=0, le=2**53)]


records_in = LineDecoder(Record)


def check_whole(run: RunDir) -> None:
    """Raises ConfigError where config.toml is lost or has lost settings that the run had: a run must not go on with others."""
    if not run.config.exists():
        if any(run.checkpoints.glob("*.safetensors")) or any(run.segments.rglob("*.segment")):
            raise ConfigError(f"run {run.name} has weights or experience, but {run.config} is lost; {MEND}, or {ANEW}")
        return
    try:
        there = dict(leaves(read_toml(run.config)))
    except ConfigError as error:
        raise ConfigError(f"{error}; {MEND}, or {ANEW}") from error
    values = read_run(run.config).values
    lost = [key for key in ("env.id", "algorithm.name") if lookup(values, key) is None]
    if there.get("format") == renamed.FORMAT:  # an older version did not have all keys of today
        lost += [key for key in recorded_settings(run) if key not in there and key not in lost]
    if lost:
        raise ConfigError(f"{run.config} is damaged: it has no {listed(lost)}; {MEND}, or {ANEW}")


def recorded_settings(run: RunDir) -> list[str]:
    """The keys of a run's configuration as its processes have it; none where that file cannot be read."""
    try:
        return [key for key, _ in leaves(read_document(run.settings("export"), dict[str, Any]))]
    except (OSError, Damaged):
        return []


def steps_done(run: RunDir) -> int:
    """Environment steps that the run has done: as of status.json or, where that cannot be read, of replay's state and metrics."""
    if (status := runs.read_status(run)) is not None and status["steps"] is not None:
        return int(status["steps"])
    recorded = RecordedRun(run)
    recorded.read()
    return max(int(recorded.total.steps), _stored_steps(run))


def _stored_steps(run: RunDir) -> int:
    try:
        each = leaves_per_chunk(read_spec(read_bytes(run.spec)))
        states = [read_state(folder / STATE_FILE, each) for folder in log_folders(run.segments)]
    except (OSError, ValueError):
        return 0
    return sum(state.inserted_items for state in states if state)


def check_config(run: RunDir, config: RunConfig) -> None:
    """Raises ConfigError where a setting that must stay was changed, or the run has done all its steps."""
    changed = changes_refused_on_resume(load_run_config(run, trusted=True), config)
    if changed:
        raise ConfigError(f"run {run.name} was made with another {', '.join(changed)}; {ANEW}")
    _check_shards(run, config.replay.shards)
    done = steps_done(run)
    if config.total_steps and not done and runs.read_status(run) is None and any(run.checkpoints.glob(EPOCHS)):
        raise ConfigError(
            f"run {run.name}: {run.status} is lost or damaged, and nothing else tells how many steps were done; {ANEW}"
        )
    if config.total_steps and done >= config.total_steps:
        raise ConfigError(f"run {run.name} has done {done:,} of {config.total_steps:,} steps; raise --total-steps, or {ANEW}")


def _check_shards(run: RunDir, wanted: int) -> None:
    try:
        stored = stored_shards(run.segments)
    except LogRefused as error:
        raise ConfigError(f"run {run.name}: {error}") from error
    if stored is not None and stored != wanted:
        raise ConfigError(
            f"run {run.name} has its experience in {stored} replay shard{'s' * (stored > 1)}, not {wanted}: redistribute it with "
            f"`headrace reshard {wanted} {run.name}`, or {ANEW}"
        )


def check_spec(run: RunDir, env_id: str, spec: ExperienceSpec) -> None:
    """Raises ConfigError where the run recorded another experience."""
    recorded = _recorded(run)
    if recorded is not None and recorded.digest != spec.digest:
        raise ConfigError(
            f"run {run.name} recorded other experience than {env_id} gives now "
            f"(observation, action, stack, n_step or chunk); {ANEW}"
        )


def as_recorded(run: RunDir, config: RunConfig, found: ExperienceSpec) -> ExperienceSpec:
    """The spec with the stack that the run was made with, where its settings leave that to the environment: earlier versions
    stacked images of two or four channels, too. And with its scale of images that may hold codes: a pre-flight may see other
    ones. Raises ConfigError."""
    recorded = _recorded(run)
    if recorded is None:
        return found
    if not config.env.stack and recorded.stack != found.stack:
        print(f"run {run.name} was made with a stack of {recorded.stack}, and goes on with it", flush=True)
        found = structs.replace(found, stack=recorded.stack)
    scales = {field.name: field.scale for field in recorded.fields if may_hold_codes(field)}
    for field in filter(may_hold_codes, found.fields):
        if (scale := scales.get(field.name, field.scale)) != field.scale:
            print(f"run {run.name} was made with {field.name} divided by {1 / scale:g}, and goes on with it", flush=True)
            fields = tuple(structs.replace(each, scale=scale) if each == field else each for each in found.fields)
            found = structs.replace(found, fields=fields)
    return found


def _recorded(run: RunDir) -> ExperienceSpec | None:
    if not run.spec.exists():
        return None
    try:
        return read_spec(read_bytes(run.spec))
    except SpecError as error:
        raise ConfigError(f"run {run.name}: {error}") from error


def check_policy(run: RunDir, policy: PolicyDescription) -> None:
    """Raises ConfigError where the run's weights are those of another network."""
    if not run.policy.is_file():
        return
    try:
        before = read_description(read_bytes(run.policy))
    except CheckpointError as error:
        raise ConfigError(f"{run.policy}: {error}; {ANEW}") from error
    if before.tensors != policy.tensors:
        raise ConfigError(f"run {run.name} was made with another network than its code builds now; {ANEW}")


def notice(run: RunDir, config: RunConfig, spec: ExperienceSpec) -> str:
    """Lines about the weights and the experience that a resumed run goes on with, or lacks."""
    steps = steps_done(run)
    newest = max(run.checkpoints.glob(EPOCHS), default=None)
    learner = (
        f"the learner continues from checkpoints/{newest.name}"
        if newest
        else "no checkpoint was written, so the learner begins anew"
    )
    items = _items(run)
    if spec.unit == "rollouts":
        replay = "rollouts are collected anew"
    elif config.offline:
        replay = "replay reads the demonstrations again"
    elif not (config.replay.durable and any(run.segments.rglob("*.segment"))):
        replay = "the replay buffer starts empty"
    elif items > config.replay.capacity:
        replay = f"the newest {config.replay.capacity:,} of {items:,} items are restored with their priorities"
    else:
        replay = f"{items:,} items and all priorities are restored" if items else "what replay holds on disk is restored"
    return f"resuming run {run.name} after {steps:,} {'updates' if config.offline else 'steps'}: {learner}; {replay}"


def _items(run: RunDir) -> int:
    """The items in replay when it last measured; 0 where there is no figure."""
    return sum(_last_items(run, name) for name in shard_names(stored_shards(run.segments) or 1))


def _last_items(run: RunDir, process: str) -> int:
    try:
        with open_file(run.metrics(process)) as file:
            file.seek(max(file.seek(0, os.SEEK_END) - LAST_RECORD_BYTES, 0))
            lines = file.read().splitlines()
    except OSError:
        return 0
    return next((int(record.items) for record in reversed(records_in(lines))), 0)
