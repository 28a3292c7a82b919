"""Writes the status.json of a run that is up, points for its sinks, and the line about the bottleneck."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import msgspec
import psutil

from actors.figures import EVALUATION
from deploy import runs
from deploy.config.run import RunConfig
from deploy.places.remote.hosts import HostPlaces
from deploy.recorded.configuration import read_device
from deploy.reporting.base import Point
from deploy.reporting.bottleneck import bottleneck
from deploy.reporting.events import BY_OPERATOR, EventLog
from deploy.reporting.figures import replay_record, shard_records, tags
from deploy.reporting.logs import Log
from deploy.reporting.outlook import Outlook
from deploy.reporting.remote import RemoteActors
from deploy.reporting.sinks.feeds import Sinks
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.operators.orders import BY_ITSELF, Orders, time_text
from deploy.supervision.status import Document, document, values
from deploy.supervision.supervisor import Supervisor
from learner.algorithms.base import make_algorithm
from transport.cgroups import processor_quota
from transport.files.documents import open_file
from transport.files.writing import sync_folder, write_atomically, write_durably
from transport.metrics import FILE_BYTES
from transport.run_dir import RunDir
from transport.system import core_count, own_cores

STATUS_SECONDS = 1.0
POINT_SECONDS = 10.0
BOTTLENECK_SECONDS = 30.0
RESTS = 0.1  # share of the time from which on deploy.cores is what limits a run


class Reports:
    """Writes each of them when it is due, from the newest records of the processes."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        log: Log,
        supervisor: Supervisor,
        remote: RemoteActors,
        curriculum: Curriculum,
        orders: Orders,
        hosts: HostPlaces | None = None,
        rested_share: Callable[[], float] = lambda: 0.0,
        steered: Callable[[], list[str]] = list,
    ) -> None:
        self._hosts, self._orders, self._rested_share, self._steered = hosts, orders, rested_share, steered
        self.worked_seconds, self.ends_at = 0.0, math.inf  # since the first step, and seconds since 1970: see Ends
        self._outlook = Outlook(partial(log.line, "supervisor"))
        self._run, self._log, self._supervisor, self._remote, self._curriculum = run, log, supervisor, remote, curriculum
        self._sinks = Sinks(config.deploy, run.path, partial(log.line, "supervisor"), log.line)
        self._rollouts = runs.learns_from_rollouts(run)
        self._began = time.monotonic()
        self._next_status, self._next_point, self._next_bottleneck = 0.0, self._began + POINT_SECONDS, self._began
        self._next_bottleneck += BOTTLENECK_SECONDS
        self._events = EventLog(run.events, FILE_BYTES, config.deploy.files_kept)
        self._limit: str | None = None  # the newest line about the bottleneck
        self._plotted_version: float | None = None  # policy version of the newest evaluation among the points
        self._evaluation: Document = (runs.read_status(run) or {}).get("evaluation") or {}
        cores_busy()  # the first call only begins the measurement

    def turn(self, config: RunConfig, steps: float, next_seed: int) -> None:
        """Called at each turn of the supervisor. `steps` are those of the whole run, `next_seed` is the first unused seed."""
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + STATUS_SECONDS
            self.write_status(config, steps, next_seed)
        if now >= self._next_point:
            self._next_point = now + POINT_SECONDS
            self.write_point(steps)
            self._sync()
        if self._orders.paused:
            self._next_bottleneck = now + BOTTLENECK_SECONDS
        elif now >= self._next_bottleneck and not self._supervisor.stopping:
            self._next_bottleneck = now + BOTTLENECK_SECONDS
            self._limit = self._bottleneck(config)
            self._log.bottleneck(self._limit)

    def close(self) -> None:
        self._sinks.close()

    def write_status(self, config: RunConfig, steps: float, next_seed: int) -> None:
        """Replaces status.json; the last one is fsynced."""
        for slot in self._supervisor.slots:
            if slot.spec.role == "evaluator" and "return_mean" in slot.record:
                self._evaluation = values(slot.record, EVALUATION)
        uptime_seconds = time.monotonic() - self._began
        device = read_device(self._run)
        pause = self._orders.paused_since, self._orders.because or None
        found = self._supervisor, self._remote, uptime_seconds, steps, self._evaluation, *pause
        status = document(self._run, config, device, *found, self._pause() or self._limit)
        status["next_seed"] = next_seed
        status |= self._expected(status["flow"]["seconds_left"])
        status["steered"] = [] if self._supervisor.finished else self._steered()
        if self._hosts is not None and not self._supervisor.finished:
            status["hosts"] = self._hosts.figures()
            status["processes"] += self._hosts.servers()
        if self._curriculum.levels:
            status["curriculum"] = self._curriculum.figures()
        try:
            write = write_durably if self._supervisor.finished else write_atomically
            write(self._run.status, msgspec.json.encode(status))  # NaN becomes null
        except OSError:  # a full disk must not end the run
            pass
        self._events.turn(status, self._orders.answered)
        self._orders.answered.clear()

    def _expected(self, seconds_left: float | None) -> Document:
        """When the run ends, and the score then. `seconds_left`: until it has made all its steps."""
        now = time.time()
        self._outlook.on_evaluation(self._evaluation, self.worked_seconds)
        ends_at = min(self.ends_at, math.inf if seconds_left is None else now + seconds_left)
        return self._outlook.figures(self.worked_seconds, math.inf if self._supervisor.stopping else ends_at, now)

    def _sync(self) -> None:
        """Has the steps of the run outlast a power cut. That may leave a status.json that was written since without content: then
        the records of replay tell the steps. An fsync with each status would keep small disks busy."""
        replay = (slot.name for slot in self._supervisor.slots if slot.spec.role == "replay")
        for path in (self._run.status, *map(self._run.metrics, replay)):
            with suppress(OSError), open_file(path, "r+b") as file:
                os.fsync(file.fileno())
        for folder in (self._run.path, self._run.path / "metrics"):
            with suppress(OSError):
                sync_folder(folder)

    def write_point(self, steps: float) -> None:
        """Sends a point of each curve to the sinks; of the evaluation's curves only after a new evaluation."""
        records = self._remote.records | {slot.name: slot.record for slot in self._supervisor.slots if slot.record}
        if not records:
            return
        evaluation = records.get("evaluator", {})
        version = evaluation.get("policy_version", self._plotted_version)
        if version == self._plotted_version:
            evaluation = {}
        self._plotted_version = version
        actors = {int(name.partition("-")[2]): record for name, record in records.items() if name.startswith("actor-")}
        point = tags(actors, replay_record(records), records.get("learner", {}), evaluation, steps, shard_records(records))
        if self._curriculum.levels:
            level = self._curriculum.figures()
            point |= {f"curriculum/{name}": float(value) for name, value in level.items() if value is not None}
        self._sinks.write(Point(int(steps), time.time(), point))

    def _pause(self) -> str:
        """The bottleneck of a run that is paused; empty for any other."""
        since = None if self._supervisor.stopping else self._orders.paused_since
        if since is None:
            return ""
        because = self._orders.because
        going_on = "go on with headrace unpause" if because == BY_OPERATOR else f"{because}; {BY_ITSELF}"
        return f"paused since {time_text(since)} · {going_on}"

    def _bottleneck(self, config: RunConfig) -> str:
        if (share := self._rested_share()) >= RESTS:
            return f"budget (the processes rest {share:.0%} of the time) · try a higher --deploy.cores, now {config.deploy.cores}"
        records = {slot.name: slot.record for slot in self._supervisor.slots}
        return bottleneck(
            [*(slot.record for slot in self._supervisor.slots if slot.spec.role == "actor"), *self._remote.records.values()],
            replay_record(records),
            records.get("learner", {}),
            min_size=0 if self._rollouts or config.offline else config.replay.min_size,
            offline=config.offline,
            envs_per_actor=config.actors.envs_per_actor,
            cores=core_count(),
            cores_busy=cores_busy(),
            band=not self._rollouts,
            advice=make_algorithm(config.algorithm).advice,
        )


def cores_busy() -> float | None:
    """The share of these cores that any process has used since the last call; None where a quota leaves less than these cores."""
    shares = psutil.cpu_percent(percpu=True)
    own = [shares[core] for core in own_cores() if core < len(shares)] or shares
    return sum(own) / len(own) / 100 if processor_quota() >= len(own_cores()) else None
