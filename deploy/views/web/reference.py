"""The reference behind a run's return: how Headrace has learned this environment without further settings."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

CURVES = "references.json"  # made by `python -m benchmarks.learning.references`
# What does not change the returns of an environment: how experience is sent, what is measured beside it, the pre-flight.
NOT_OF_THE_TASK = ("env.quantise", "env.stack", "env.chunk_length", "env.info_keywords", "env.preflight_seconds")


class Curve(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Evaluations of a run with `headrace up --env ENV` and nothing else."""

    env: dict[str, Any]  # its section of the configuration
    algorithm: str
    seed: int
    cores: int
    commit: str
    source: str  # the file that has all of its evaluations
    seconds: tuple[float, ...]  # since the start of the process
    steps: tuple[int, ...]
    return_mean: tuple[float, ...]


def reference(settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The curve of the same environment with the same options, as the page shows it; None where there is none. `settings` are
    those of a run, by key."""
    task = of_the_task(settings)
    return next((msgspec.to_builtins(one) for one in curves() if of_the_task(flat(one.env)) == task), None)


@cache
def curves() -> tuple[Curve, ...]:
    return msgspec.json.decode((files("deploy.views.web") / CURVES).read_bytes(), type=tuple[Curve, ...])


def flat(env: Mapping[str, Any]) -> dict[str, Any]:
    return {f"env.{name}": value for name, value in env.items()}


def of_the_task(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key.startswith("env.") and key not in NOT_OF_THE_TASK}
