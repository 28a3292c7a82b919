"""The seam of sinks: where the figures of a run go, besides its own files.

`--sinks tensorboard,package.module:Name` names them; `[deploy.sink_options."package.module:Name"]` holds the options of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct


class NoOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """Of a sink that has no options."""


class Point(NamedTuple):
    """What a run measured: its figures by tag, such as rollout/ep_rew_mean."""

    steps: int  # environment steps of the run
    time: float  # seconds since 1970
    values: Mapping[str, float]


class Sink(Protocol):
    """Made and used in a thread of its own: what it waits for delays nobody, and what it raises ends it, not the run."""

    Config: ClassVar[type[Struct]]  # its options; may be left out where it has none

    def __init__(self, run: Path, config: Any) -> None:
        """`run` is the run's folder, `config` an instance of Config."""

    def write(self, record: Point) -> None:
        """One point, some every ten seconds."""

    def close(self) -> None:
        """The run is over; there are two seconds until the process ends."""
