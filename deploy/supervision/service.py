"""A run from its first process to its last: the supervisor with a place, a socket, signals and files."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from actors.config import run_seed
from deploy import cores, runs, settings
from deploy.children import python_command, start_in_background
from deploy.conditions import Conditions
from deploy.config.files import write_config
from deploy.config.run import RunConfig, steps_name
from deploy.config.stop_conditions import StopConditions
from deploy.engines import base as engines
from deploy.launch import access
from deploy.launch.resume import steps_done
from deploy.launch.sums import forget_sums, write_sums
from deploy.places.base import Place, Process
from deploy.places.local import LocalOrHost, LocalPlace
from deploy.places.memory import resident_bytes
from deploy.places.remote.host_folder import collect, settings_digest
from deploy.places.remote.hosts import HostContext, HostPlaces, Parts
from deploy.places.standby import Standby
from deploy.places.throttle import Throttle
from deploy.process_spec import ProcessSpec
from deploy.reporting.logs import Log, Terminal
from deploy.reporting.remote import RemoteActors
from deploy.signals import stop_signals
from deploy.supervision.assignments import Assignments
from deploy.supervision.control import Control
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.operators.orders import Looks, Orders
from deploy.supervision.operators.steering import Steering
from deploy.supervision.processes import ProcessState, topology
from deploy.supervision.reports import Reports
from deploy.supervision.steps import Allowances, StepCount
from deploy.supervision.supervisor import LEAVE_SECONDS, Supervisor
from replay.shards import shard_names
from transport.files.documents import read_text
from transport.files.writing import write_durably
from transport.messages.control import Allowance, Look, Order, OrderOutcome, Progress, Scaling, Seen, Steer, Stop, Stopping
from transport.messages.fields import DRAIN_SECONDS, Message, printable
from transport.metrics import FILE_BYTES, Record, append_record
from transport.run_dir import RunDir
from transport.sockets.authenticator import AUTHENTICATOR
from transport.sockets.keys import role_of
from transport.sockets.limits import ResourceLimits

TURN_SECONDS = 0.1
LOOK_SECONDS = 1.0  # between two looks at the run's folder
BY_CTRL_C = "stopped by you"


class Service:
    """Made and used in the main thread, under the run's lock."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        terminal: Terminal | None,
        stop_conditions: StopConditions,
        plan: Callable[[RunConfig, Path], Sequence[ProcessSpec]] = topology,
        place: Place | None = None,
        standby: Standby | None = None,
    ) -> None:
        """Removes sockets of a killed supervisor, writes the settings, binds the control socket; starts nothing. What does not go
        to a host goes to `place`; without one it runs on this machine, and `standby` becomes the first processes. Raises
        OSError, KeysError."""
        self._run, self._config, self._plan, self._stop_conditions = run, config, plan, stop_conditions
        # A rollout is acknowledged when the learner takes it. During a stop it takes hardly any, so actors do not wait.
        self._drain_seconds = 0.0 if runs.learns_from_rollouts(run) else DRAIN_SECONDS
        self._first_step: float | None = None  # working seconds when it arrived; --stop-after counts from there
        before, steps = runs.read_status(run) or {}, steps_done(run)
        self._steps = StepCount(steps, config.replay.shards)
        self._allowances = Allowances(config.total_steps, steps)
        next_seed = before.get("next_seed") or run_seed(config.seed) + steps  # more than have been used, if it is lost
        self._curriculum = Curriculum(run.curriculum)
        self._assignments = Assignments(config.actors.count, config.actors.envs_per_actor, int(next_seed), self._curriculum.level)
        run.create()
        forget_sums(run)
        run.remove_sockets()
        self._folder, self._next_look = run.identity, 0.0
        settings.write(run, config)
        self.log = Log(run, FILE_BYTES, config.deploy.files_kept, terminal, config.deploy.verbosity)
        self._control = Control(run, self)
        keys = access.RunKeys(run)
        send, digest = self._control.send, settings_digest(run, config)
        context = HostContext(time.monotonic, self.say, self.log.line, send, self._collect, lambda: digest, keys)
        self._hosts = self._control.hosts = HostPlaces(context, hosted(before))
        here = place or LocalPlace(self.log.line, config.actors.memory_bytes, standby)
        self._place: Place = LocalOrHost(here, self._hosts, config.deploy.local_actors, keys.reclaim)
        supervised = partial(run.endpoint, "supervisor")
        outer = engines.EngineContext(time.monotonic, self.say, self.log.line, supervised, self._ticket, self._hosts)
        self._engine = engines.find_engine(config.deploy.on)(run, config, outer)
        self._engine.want(self._places_wanted(config.actors.count))
        self._signals: list[int] = []
        self._throttle = Throttle(cores.allowed(config.deploy.cores), self._working_here)
        self._conditions = Conditions(config.deploy.pause_on, self.say)
        self._wanted_actors = config.actors.count
        own = {"clock": self._clock, "spawn": self._spawn, "ask": self._ask, "say": self.say}
        self.supervisor = Supervisor(plan(config, run.path), config.deploy, **own)
        self._orders = Orders(run.name, self.supervisor, send, self.say)
        self._remote = RemoteActors(time.monotonic, self.log.line)
        self._looks = Looks(run.name, self.supervisor, self._remote, self._orders, send, self._control.reply)
        self._steering = Steering(self._looks, self._orders, send, self._control.reply, self.say)
        parts = self.supervisor, self._remote, self._curriculum, self._orders, self._hosts, self._throttle.rested_share
        self._reports = Reports(run, config, self.log, *parts, lambda: self._steering.steered)

    def say(self, text: str) -> None:
        """A line of the supervisor in the log."""
        self.log.line("supervisor", text)

    @property
    def steps(self) -> int:
        """Environment steps of the run, those before a resume included."""
        return self._steps.total

    def run(self) -> int:
        """Runs until the end and returns the exit status. Leaves no process, socket or endpoint."""
        with stop_signals(lambda number, frame: self._signals.append(number)):
            return self._run_to_the_end()

    def _run_to_the_end(self) -> int:
        AUTHENTICATOR.say, print_line = self.say, AUTHENTICATOR.say
        limits = ResourceLimits([self._control.address], resident_bytes([os.getpid()]), self.say)
        if line := self._stop_conditions.announcement(time.time()):
            self.say(line)
        cores.bind(cores.allowed(self._config.deploy.cores))
        self._throttle.start()
        self._conditions.start()
        try:
            while not self.supervisor.finished:
                self._turn()
                limits.turn()
            self._reports.write_status(self._config, self.steps, self._assignments.next_seed)
            self._reports.write_point(self.steps)
            verb = "failed" if self.supervisor.exit_status else "stopped"
            self.say(f"run {self._run.name} {verb}: {self.supervisor.reason} · {self.steps:,.0f} {steps_name(self._config)}")
        finally:
            self._throttle.close()
            self._conditions.close()
            self._reports.close()  # first: the place ends every process that is left
            self._hosts.close()
            self._engine.close()
            self._place.close()
            self._control.close()
            AUTHENTICATOR.say = print_line
            self._run.remove_sockets()
            self.log.close()
        with suppress(OSError):  # on a full disk: then the files of the run cannot be checked by them
            write_sums(self._run)
        return self.supervisor.exit_status

    def _turn(self) -> None:
        self._obey_signals()
        self._control.listen(0)  # first: the last record of a process that has ended counts only while it is not known to have
        self.supervisor.turn()
        self._place.turn()
        if self.supervisor.stopping:
            self._throttle.close()  # the stop has a limit of time
        else:
            self._orders.on_condition(self._conditions.holds)
            self._engine.turn()
        self._control.listen(TURN_SECONDS)
        if self._wanted_actors != self._config.actors.count and not self.supervisor.stopping:
            self._change_actors(self._config.actors.count, self._wanted_actors)
        self._remote.turn()
        self._steering.turn()
        self._check_folder()
        self._check_limits()
        self._reports.turn(self._config, self.steps, self._assignments.next_seed)

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if not self.supervisor.stopping:
                self.stop(BY_CTRL_C if number == signal.SIGINT else f"stopped by {signal.Signals(number).name}")
            elif number == signal.SIGINT:
                self.say("killing everything")
                self.supervisor.kill_all()

    def _check_folder(self) -> None:
        """Stops a run whose folder was deleted or replaced: nothing that it learns could be found again."""
        if time.monotonic() < self._next_look or self.supervisor.stopping:
            return
        self._next_look = time.monotonic() + LOOK_SECONDS
        try:
            found = self._run.identity
        except OSError:  # it may be there: the next look tells
            return
        if found != self._folder:
            self.stop(f"its folder {self._run.path} was {'replaced' if found else 'deleted'}", exit_status=1)

    def _check_limits(self) -> None:
        total = self._config.total_steps
        if total and self.steps >= total:
            self.stop(f"{self.steps:,.0f} of {total:,} {steps_name(self._config)} done", planned=True)
        if self._first_step is None and self._steps.moved:
            self._first_step = self._orders.working_seconds
        since = 0.0 if self._first_step is None else self._orders.working_seconds - self._first_step
        if reason := self._stop_conditions.reason(since, now := time.time()):
            self.stop(reason, planned=True)
        self._reports.worked_seconds, self._reports.ends_at = since, self._stop_conditions.ends_at(since, now)

    # ---- what arrives on the control socket

    def is_current(self, progress: Progress) -> bool:
        return self.supervisor.is_current(progress)

    def on_progress(self, progress: Progress) -> None:
        if role_of(progress.name) == "replay" and self.supervisor.is_current(progress):
            self._steps.on_progress(progress)
        self.supervisor.on_progress(progress)
        self._orders.on_progress(progress)
        found = progress.record.get("return_mean", -math.inf)
        if role_of(progress.name) == "evaluator" and (reason := self._stop_conditions.reason_after_evaluation(found)):
            self.stop(reason, planned=True)
        if progress.record and self.supervisor.host_of(progress.name):
            self._record(progress.name, progress.record)
        if progress.record and (line := self._curriculum.on_record(progress.name, progress.record)):
            self.say(line)
            self._assignments.set_level(self._curriculum.level)
        self._send_assignment(progress.name)
        if actor_index(progress.name) is not None and (allowance := self._allowance(progress)):
            self._control.send(progress.name, allowance)

    def _allowance(self, progress: Progress) -> Allowance | None:
        """The steps that a reporting actor may take; None where the run has no planned number of steps, or is stopping."""
        if not self._config.total_steps or self.supervisor.stopping:
            return None
        at_work = {slot.name for slot in self.supervisor.slots if slot.spec.role == "actor" and slot.process is not None}
        return Allowance(self._allowances.renewed(progress, self.steps, {*at_work, *self._remote.working}))

    def on_remote_progress(self, progress: Progress) -> Message | None:
        # A report of a process of this machine that is being replaced comes here, too.
        if actor_index(progress.name) is None or self.supervisor.slot(progress.name) is not None:
            return None
        self._remote.on_progress(progress)
        return self._orders.pending_order(progress) or self._looks.pending_look(progress.name) or self._allowance(progress)

    def _record(self, name: str, record: Record) -> None:
        """Keeps the record of an actor on a host, as an actor of this machine keeps its own."""
        append_record(self._run.metrics(name), record, kept=self._config.deploy.files_kept)

    def stop(self, reason: str, exit_status: int = 0, planned: bool = False) -> None:
        if not self.supervisor.stopping:
            self.say(f"stopping: {reason} (Ctrl-C {'again ' if reason == BY_CTRL_C else ''}kills at once)")
            for name in shard_names(self._config.replay.shards):
                self._control.send(name, Stopping())
        self.supervisor.stop(reason, exit_status, planned)

    def scale(self, actors: int) -> Scaling | Stopping:
        """Changes the number of actors, which all get other environments and new seeds. Starts abandoned ones again, also where
        the number stays."""
        if self.supervisor.stopping:
            return Stopping()
        if actors == self._wanted_actors and self.supervisor.abandoned:
            self.supervisor.replan(self._plan(self._config, self._run.path))
        before, self._wanted_actors = self._wanted_actors, actors
        return Scaling(before, actors)

    def order(self, order: Order) -> OrderOutcome:
        return self._orders.carry_out(order)

    def look(self, peer: bytes, look: Look) -> OrderOutcome | None:
        return self._looks.ask(peer, look)

    def steer(self, peer: bytes, steer: Steer) -> OrderOutcome | None:
        return self._steering.ask(peer, steer)

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        self._looks.seen(seen, parts)
        self._steering.seen(seen, parts)

    def _change_actors(self, before: int, actors: int) -> None:
        self.say(f"scaling from {before} to {actors} actors")
        config = structs.replace(self._config, actors=structs.replace(self._config.actors, count=actors))
        try:
            if self._control.has_keys:
                access.make_missing(self._run, actors)
            settings.write(self._run, config)
        except OSError as error:  # a full disk must not end the run
            self.say(f"the run goes on with {before} actors: {error}")
            self._wanted_actors = before
            return
        self._config = config
        if actors > before and runs.learns_from_rollouts(self._run):
            self.say(
                "the size of rollout batches changes only when the run is started again: with more environments than chunks in "
                "a batch, some chunks become too old and are dropped"
            )
        try:
            write_durably(self._run.config, write_config(self._config))
        except OSError as error:
            self.say(f"could not write {self._run.config.name} ({error.strerror}): a resume will have {before} actors")
        self._assignments.renew(actors)
        self._engine.want(self._places_wanted(actors))
        self.supervisor.replan(self._plan(self._config, self._run.path))
        for name in self._control.names:
            self._send_assignment(name)

    # ---- what the supervisor calls

    def _clock(self) -> float:
        """Seconds, without those in which the processes of this machine rest so that they use no more than `deploy.cores`."""
        return time.monotonic() - self._throttle.rested_seconds

    def _working_here(self) -> list[int]:
        """The pids of the run's processes on this machine."""
        processes = [slot.process for slot in self.supervisor.slots]
        return [process.pid for process in processes if process is not None and not process.host]

    def _spawn(self, spec: ProcessSpec) -> Process | None:
        self._control.forget(spec.name)
        index = actor_index(spec.name)
        process = self._place.begin(spec, None if index is None else self._assignments.for_start(index))
        if process is not None:
            if index is not None and not process.adopted:  # to one that is at work the assignment is sent
                self._assignments.started(index)
            if process.host:
                self.say(f"{spec.name} works on {process.host}" if process.adopted else f"starting {spec.name} on {process.host}")
            else:
                self.say(f"starting {spec.name} (pid {process.pid})")
        return process

    def _places_wanted(self, actors: int) -> int:
        """Places on hosts for those that may not run here."""
        return max(actors - self._config.deploy.local_actors, 0)

    def _ticket(self, host: str) -> str:
        """The text of a host's ticket. Raises KeysError, OSError."""
        return read_text(access.ticket(self._run, host)[0])

    def _collect(self) -> Parts | None:
        """The files that hosts need; None where they cannot be read now."""
        try:
            return collect(self._run, self._config)
        except OSError:
            return None

    def _ask(self, slot: ProcessState) -> None:
        leaving = slot.leaving is not None
        drain_seconds = LEAVE_SECONDS if leaving else self._drain_seconds
        reason = "fewer actors are wanted" if leaving else self.supervisor.reason
        finishing_seconds = self.supervisor.finishing_seconds(slot)
        self._control.send(slot.name, Stop(printable(reason), drain_seconds, finishing_seconds))
        if slot.process is not None and not finishing_seconds:  # a signal would arrive before the message that gives it time
            slot.process.ask()

    def _send_assignment(self, name: str) -> None:
        index = actor_index(name)
        if index is not None and name in self._control.names and (assignment := self._assignments.pending(index)):
            self._control.send(name, assignment)


def hosted(status: dict[str, Any]) -> dict[str, str]:
    """The hosts of actors under the previous supervisor, by actor. `status` is the last one that it wrote."""
    if status.get("state") in ("stopped", "failed"):
        return {}
    processes = [each for each in status.get("processes", []) if each.get("host")]
    return {each["name"]: each["host"] for each in processes if actor_index(each["name"]) is not None}


def actor_index(name: str) -> int | None:
    """3 for actor-3; None for any other process."""
    role, _, index = name.partition("-")
    return int(index) if role == "actor" and index.isdigit() else None


def start_detached(run: RunDir, stop_conditions: StopConditions) -> subprocess.Popen[bytes]:
    """Starts a supervisor in a session of its own, with its output in logs/supervisor.log."""
    command = python_command("deploy.supervision", str(run.path), *stop_conditions.flags())
    return start_in_background(command, run.log("supervisor"))
