"""What sections of a configuration demand of one another, and what a resumed run must keep."""

from __future__ import annotations

import ipaddress
import re

import msgspec

from actors.config import EnvConfig
from deploy.config.files import lookup
from deploy.config.run import RunConfig
from learner.algorithms.ppo.config import PpoConfig

NAME_OR_ADDRESS = re.compile(r"[A-Za-z0-9._:%-]*")

# What the weights of a stopped run were made for: changing one of these means another run. Simulators of one game or arm, and
# how hard its tasks are, are not among them.
FREE_ON_RESUME = ("preflight_seconds", "backend", "tolerance", "tier", "curriculum")
FIXED_ON_RESUME = (
    *(f"env.{name}" for name in EnvConfig.__struct_fields__ if name not in FREE_ON_RESUME),
    *(f"algorithm.{name}" for name in ("name", "n_step", "dueling", "network", "hidden", "layers", "hindsight")),
)


def is_address(text: str) -> bool:
    """Whether this is an IP address, or empty."""
    try:
        return not text or bool(ipaddress.ip_address(text))
    except ValueError:
        return False


def validate(config: RunConfig) -> list[str]:
    """Complaints about sections that do not fit one another; empty when all is well."""
    replay, learner, algorithm = config.replay, config.learner, config.algorithm
    chunk = config.env.chunk_length
    rollouts = replay.selector == "fifo"
    checks = [
        (learner.batch_size % learner.accumulation == 0,
         f"learner.accumulation ({learner.accumulation}) must divide learner.batch_size ({learner.batch_size})"),
        (rollouts or replay.min_size <= replay.capacity,
         f"replay.capacity ({replay.capacity}) must be at least replay.min_size ({replay.min_size})"),
        (rollouts or learner.batch_size <= replay.min_size,
         f"replay.min_size ({replay.min_size}) must be at least learner.batch_size ({learner.batch_size})"),
        (replay.samples_per_insert_low < replay.samples_per_insert_high,
         f"replay.samples_per_insert_low ({replay.samples_per_insert_low:g}) must be below "
         f"replay.samples_per_insert_high ({replay.samples_per_insert_high:g})"),
        (isinstance(algorithm, PpoConfig) == rollouts,
         "replay.selector fifo, which serves whole chunks, each once, is what PPO needs and nothing else can use"),
        (is_address(config.deploy.bind),
         f"deploy.bind must be an IP address of this machine, such as 127.0.0.1 or ::1, not {config.deploy.bind!r}"),
        (NAME_OR_ADDRESS.fullmatch(config.deploy.advertise) is not None,
         f"deploy.advertise must be a host's name or address, not {config.deploy.advertise!r}"),
        (chunk & (chunk - 1) == 0, f"env.chunk_length must be a power of two (or 0), not {chunk}"),
    ]  # fmt: skip
    return [complaint for fine, complaint in checks if not fine]


def changes_refused_on_resume(old: RunConfig, new: RunConfig) -> list[str]:
    """The keys that differ although a stopped run's weights depend on them, as `key (old, now new)`."""
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    pairs = ((path, lookup(before, path), lookup(after, path)) for path in FIXED_ON_RESUME)
    return [f"{path} ({was!r}, now {wanted!r})" for path, was, wanted in pairs if was != wanted]
