"""The protocol of sinks, which receive the figures of a run besides its own files.

`--sinks tensorboard,package.module:Name` names them; `[deploy.sink_options."package.module:Name"]` holds the options of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct


class NoOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a sink that has none."""


class Point(NamedTuple):
    """The figures of a run at one time, by tag, such as rollout/ep_rew_mean."""

    steps: int  # environment steps of the run
    time: float  # seconds since 1970
    values: Mapping[str, float]


class Sink(Protocol):
    """Made and used in a thread of its own. Waiting delays no other; an exception ends the sink, not the run."""

    Config: ClassVar[type[Struct]]  # its options; a sink without options may leave it out

    def __init__(self, run: Path, config: Any) -> None:
        """`run` is the run's folder, `config` an instance of Config."""

    def write(self, record: Point) -> None:
        """Takes a point. There is one about every ten seconds."""

    def close(self) -> None:
        """Called when the run is over, two seconds before the process ends."""
