"""The protocol of sinks, which receive the figures of a run besides its own files, and the base of a user's callbacks.

`--sinks tensorboard,package.module:Name` names sinks, `--track wandb` adds tracking services, and
`[deploy.sink_options."package.module:Name"]` holds the options of one. `--callbacks package.module:Name` names callbacks.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

from msgspec import Struct


class NoSinkOptions(Struct, frozen=True, forbid_unknown_fields=True):
    """The options of a sink that has none."""


EVALUATION = "eval/"  # begins the tags of an evaluation's figures


class Point(NamedTuple):
    """The figures of a run at one time, by tag, such as rollout/ep_rew_mean."""

    steps: int  # environment steps of the run
    time: float  # seconds since 1970
    values: Mapping[str, float]


class Sink(Protocol):
    """A sink runs in a thread of the supervisor, or in a separate process. A slow sink delays no other sink; an exception ends
    the sink, not the run."""

    # The optional attributes of a sink's class:
    Config: ClassVar[type[Struct]]  # its options; without it there are none
    # own_process: ClassVar[bool] = True: it runs in a separate process, for libraries that are large, start threads or hang.
    # package, extra: ClassVar[str]: a package that it needs and the extra that installs it; checked before the launch.

    def __init__(self, run: Path, config: Any) -> None:
        """`run` is the run's folder, `config` an instance of Config."""

    def write(self, record: Point) -> None:
        """Takes a point. There is one about every ten seconds."""

    def close(self) -> None:
        """Called when the run is over. It may take two seconds in a thread, five in a separate process, which is then killed."""


class Callbacks:
    """The base class for `--callbacks`; inheriting it is optional. Its methods run in a separate process, one at a time.

    A method that returns False stops the run, as `headrace down` does. An exception in a method is written to the log, and the
    calls go on. While a method runs, points queue up; when more than a hundred wait, the newest are dropped.
    """

    def __init__(self, run: Path) -> None:
        """`run` is the run's folder."""
        self.run = run

    def on_metrics(self, point: Point) -> bool | None:
        """Called about every ten seconds, with all figures."""

    def on_evaluation(self, point: Point) -> bool | None:
        """Called after an evaluation, with its figures only: eval/mean_reward, eval/success_rate … Of several evaluations within
        ten seconds only the newest is reported."""

    def on_checkpoint(self, path: Path) -> bool | None:
        """Called after a file in the run's folder checkpoints/ was written: latest.safetensors, best.safetensors, epoch-…"""
