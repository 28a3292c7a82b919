"""Checks across sections of a configuration, and the settings that a resumed run must keep."""

from __future__ import annotations

import ipaddress
import math
import re
from collections.abc import Iterator
from typing import get_args

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import FieldInfo

from deploy.config.files import Tree, as_tree, lookup
from deploy.config.run import RunConfig
from deploy.cores import LEAST_CORES, allowed
from learner.algorithms.base import find_algorithm, offline_algorithms
from replay.table.selectors import selector_config, serves_shards
from transport.experience import ExperienceSpec
from transport.names import FIXED

MAY_BE_INFINITE = ("replay.samples_per_insert_high",)
LEAST_SILENCE_SECONDS = 1.0
MOST_SHARES = 0.9  # of a batch, both together: the limiter counts only what is drawn of the run's own experience
LEAST_ACTOR_BYTES, LEAST_DEVICE_BYTES = 50_000_000, 1_000_000
NAME_OR_ADDRESS = re.compile(r"[A-Za-z0-9._:%-]*")


def is_address(text: str) -> bool:
    """Also of an empty text."""
    try:
        return not text or bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def is_budget(cores: str | float) -> bool:
    try:
        return bool(allowed(cores))
    except ValueError:
        return False


def validate(config: RunConfig, spec: ExperienceSpec | None = None) -> list[str]:
    """Complaints about sections that do not fit one another. `spec` is the run's, once it is known: whether the learner samples
    from a buffer follows from it."""
    replay, learner, deploy, chunk = config.replay, config.learner, config.deploy, config.env.chunk_length
    sampled = spec is not None and spec.unit != "rollouts"
    checks = [
        (learner.batch_size % learner.accumulation == 0,
         f"learner.accumulation ({learner.accumulation}) must divide learner.batch_size ({learner.batch_size})"),
        (not sampled or replay.min_size <= replay.capacity,
         f"replay.capacity ({replay.capacity}) must be at least replay.min_size ({replay.min_size})"),
        (not sampled or learner.batch_size <= replay.min_size,
         f"replay.min_size ({replay.min_size}) must be at least learner.batch_size ({learner.batch_size})"),
        (replay.samples_per_insert_low < replay.samples_per_insert_high,
         f"replay.samples_per_insert_low ({replay.samples_per_insert_low:g}) must be below "
         f"replay.samples_per_insert_high ({replay.samples_per_insert_high:g})"),
        (not replay.demonstrations or replay.demonstration_share + replay.human_share <= MOST_SHARES,
         f"replay.demonstration_share ({replay.demonstration_share:g}) and replay.human_share ({replay.human_share:g}) may be at "
         f"most {MOST_SHARES:g} together: the rest of a batch is the run's own experience"),
        (is_address(deploy.bind),
         f"deploy.bind must be an IP address of this machine, such as 127.0.0.1 or ::1, not {deploy.bind!r}"),
        (NAME_OR_ADDRESS.fullmatch(deploy.advertise) is not None,
         f"deploy.advertise must be a host name or address, not {deploy.advertise!r}"),
        (not deploy.port or bool(deploy.bind or deploy.on),  # an engine brings the address
         f"deploy.port: expected 0 without deploy.bind, got {deploy.port}"),
        (not 0 < deploy.hang_seconds < LEAST_SILENCE_SECONDS,
         f"deploy.hang_seconds: expected 0 or at least {LEAST_SILENCE_SECONDS:g} s, got {deploy.hang_seconds:g}; "
         "processes report twice a second"),
        (is_budget(deploy.cores),
         f"deploy.cores: expected a share of this machine's cores, such as 60%, or a number from {LEAST_CORES:g} on, such as "
         f"1.5, got {deploy.cores!r}"),
        (not 0 < config.actors.memory_bytes < LEAST_ACTOR_BYTES,
         f"actors.memory_bytes: expected 0 or at least {LEAST_ACTOR_BYTES:,}, got {config.actors.memory_bytes:,}; "
         "an actor takes as much without a simulator"),
        (learner.learning_rate_schedule == "constant" or bool(learner.schedule_steps or config.total_steps),
         f"learner.learning_rate_schedule: {learner.learning_rate_schedule} needs an end: set --total-steps, or "
         "--learner.schedule-steps"),
        (not 0 < learner.memory_limit_bytes < LEAST_DEVICE_BYTES,
         f"learner.memory_limit_bytes: expected 0 or at least {LEAST_DEVICE_BYTES:,}, got {learner.memory_limit_bytes:,}"),
        (chunk & (chunk - 1) == 0, f"env.chunk_length must be a power of two (or 0), not {chunk}"),
    ]  # fmt: skip
    complaints = [*(complaint for fine, complaint in checks if not fine), *_offline(config)]
    complaints += [
        f"{path}: expected a finite number, got {number}"
        for path, number in _not_finite(as_tree(config), "")
        if path not in MAY_BE_INFINITE
    ]
    try:
        selector_config(replay)
        if replay.shards > 1 and not serves_shards(replay):
            complaints.append(f"replay.selector {replay.selector} needs replay.shards 1: it has no `total`")
    except ValueError as error:
        complaints.append(str(error))
    return complaints


def _offline(config: RunConfig) -> Iterator[str]:
    """Complaints about an offline run."""
    if not config.offline:
        return
    if not config.replay.demonstrations:
        yield "offline: name the data set to learn from with --replay.demonstrations"
    if find_algorithm(config.algorithm.name).offline is None:
        able = " or ".join(offline_algorithms())
        yield f"offline: --algo {config.algorithm.name} learns from what its own actors collect: take --algo {able}"


def _not_finite(tree: Tree, prefix: str) -> Iterator[tuple[str, float]]:
    """The numbers that are infinite or NaN, with their paths."""
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _not_finite(value, f"{prefix}{key}.")
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{prefix}{key}", value


def changes_refused_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys that differ although the weights of a stopped run depend on them, as `key (old, now new)`."""
    before, after = as_tree(old), as_tree(new)
    pairs = ((path, lookup(before, path), lookup(after, path)) for path in fixed_keys(new))
    return [f"{path} ({was!r}, now {wanted!r})" for path, was, wanted in pairs if was != wanted]


def fixed_keys(config: RunConfig) -> list[str]:
    """The keys marked FIXED in the run and in any section: the weights of a run were made for their values."""
    sections = [(field.name, getattr(config, field.name)) for field in msgspec.structs.fields(RunConfig)]
    sections += [("env", config.env.options), ("algorithm", config.algorithm.options)]
    structs = [(name, type(section)) for name, section in sections if isinstance(section, Struct)]
    of_sections = (f"{name}.{field}" for name, kind in structs for field in fixed_fields(kind))
    return [*fixed_fields(RunConfig), "algorithm.name", *of_sections]


def fixed_fields(section: type[Struct]) -> list[str]:
    """The names of the fields that are marked FIXED."""
    return [field.name for field in msgspec.structs.fields(section) if is_marked(field, FIXED)]


def is_marked(field: FieldInfo, mark: dict[str, bool]) -> bool:
    """True where a field is declared with `extra=mark`, and perhaps others."""
    metas = [meta for meta in get_args(field.type)[1:] if isinstance(meta, Meta)]
    return any((meta.extra or {}).items() >= mark.items() for meta in metas)
