"""The protocol of sinks, which receive the figures of a run besides its own files, and the base of a user's callbacks.

`--sinks tensorboard,package.module:Name` names sinks, `--track wandb` adds some to them, and
`[deploy.sink_options."package.module:Name"]` holds the options of one. `--callbacks package.module:Name` names callbacks.
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
    """Made and used in a thread of the supervisor, or in a process of its own. Waiting delays no other; an exception ends the
    sink, not the run."""

    # The optional attributes of a sink's class:
    Config: ClassVar[type[Struct]]  # its options; without it there are none
    # own_process: ClassVar[bool] = True: it is made in a process of its own, for libraries that are large, start threads or hang.
    # package, extra: ClassVar[str]: a package that it needs, and the extra of Headrace that brings it; checked before the launch.

    def __init__(self, run: Path, config: Any) -> None:
        """`run` is the run's folder, `config` an instance of Config."""

    def write(self, record: Point) -> None:
        """Takes a point. There is one about every ten seconds."""

    def close(self) -> None:
        """Called when the run is over. A process of its own is killed after five seconds, a thread is left after two."""


class Callbacks:
    """What a user's class for `--callbacks` may inherit. It has a process of its own; its methods are called one after the other.

    An exception of a method is written to the log, and the next call follows. While a method waits, points queue up; when more
    than a hundred wait, the newest are left out.
    """

    def __init__(self, run: Path) -> None:
        """`run` is the run's folder."""
        self.run = run

    def on_metrics(self, point: Point) -> None:
        """About every ten seconds, with all figures."""

    def on_evaluation(self, point: Point) -> None:
        """After an evaluation, with its figures alone: eval/mean_reward, eval/success_rate … Of several within ten seconds, the
        newest."""

    def on_checkpoint(self, path: Path) -> None:
        """After a file in the run's folder checkpoints/ was written anew: latest.safetensors, best.safetensors, epoch-…"""
