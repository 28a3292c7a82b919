"""One line of the supervisor's table."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from deploy.places.base import Process
from deploy.process_spec import ProcessSpec
from transport.metrics import Record

State = Literal["waiting", "starting", "ready", "restarting", "stopping", "stopped", "failed"]


@dataclass
class ProcessState:
    """A planned process of the run, and the incarnation of it that exists now. Times are those of the supervisor's clock."""

    plan: ProcessSpec
    state: State = "waiting"
    process: Process | None = None
    started: float = 0.0
    start_at: float = 0.0  # the earliest time of the next start
    failures: float = 0.0  # unexpected exits, minus those that later work has made up for
    restarts: int = 0  # of all incarnations
    last_exit: str | None = None
    been_ready: bool = False  # in any incarnation
    ready_at: float | None = None  # in this incarnation
    reports: int = 0  # of this incarnation
    settled: bool = False  # has reported since it was ready
    resting: bool = False  # says that it does nothing, because the run is paused
    heard: float = 0.0  # when it last reported, or was started
    record: Record = field(default_factory=dict)  # the newest; empty once it has ended
    last_record: Record = field(default_factory=dict)  # the newest of an incarnation that has ended
    killed: float | None = None  # when the supervisor killed it
    cause: str = ""  # why the supervisor killed it
    no_room: bool = False  # it was to be started, and no place had room
    leaving: float | None = None  # since when it is no longer part of the run

    @property
    def name(self) -> str:
        return self.plan.name
