"""The supervisor: a table of processes, and the rules that decide what to do next.

It has no clock, process or socket of its own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from deploy.config.run import DeployConfig
from deploy.places.base import OUT_OF_MEMORY, Exit, Process
from deploy.process_spec import ProcessSpec, restart_seconds
from deploy.supervision.liveness import Patience
from deploy.supervision.processes import STOP_ORDER, ProcessState
from transport.lifetime import HOPELESS_STATUS
from transport.messages.control import Progress
from transport.text import listed

LONGEST_DELAY_SECONDS = 60.0
HEALTHY_SECONDS = 5.0  # at work, after which a process has one crash less counted against deploy.restarts
LEAVE_SECONDS = 60.0  # for an actor that is no longer wanted to send its last steps
LEAK_FACTOR = 10.0  # an exit for lack of memory is forgiven after this many times as much work
STARTS_PER_TURN = 4  # a start takes some hundredths of a second, and signals are read between two turns
LEAVING_SHARE = 0.6  # of deploy.stop_seconds, for actors: processes that save something wait for their end
SAVED_BYTES_PER_SECOND = 10e6  # by the slowest disk that is waited for
MOST_EXTENSIONS = 5  # times deploy.stop_seconds, which a process that still reports gets at most
NOTICE_SECONDS = 3.0  # after which it says what a stop waits for
LAST_WAIT_SECONDS = 1.0  # for the end of a process after SIGKILL; then the stop goes on without it
USAGE_ERROR = 2


class Supervisor:
    """Starts processes once those that they need are ready, replaces those that end, and stops all in order.

    Call `turn` about ten times a second until `finished`. Clock, spawn, ask and say are parameters, so that tests can replay
    histories. `spawn` returns None where there is no room yet: it is called again at each turn, and nothing counts as failed.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        config: DeployConfig,
        *,
        clock: Callable[[], float],
        spawn: Callable[[ProcessSpec], Process | None],
        ask: Callable[[ProcessState], None],
        say: Callable[[str], None],
        jitter: Callable[[], float] = lambda: random.uniform(0.8, 1.2),
    ) -> None:
        self.slots = [ProcessState(spec) for spec in specs]
        self.exit_status = 0
        self.reason = ""
        self.finished = False
        self._by_name = {slot.name: slot for slot in self.slots}
        self._config = config
        self._clock, self._spawn, self._ask, self._say, self._jitter = clock, spawn, ask, say, jitter
        self._patience = Patience(config)
        self._stop_began: float | None = None
        self._planned = False
        self._phase = 0
        self._phase_began: float | None = None
        self._next_notice = 0.0
        self._at_once = False

    @property
    def stopping(self) -> bool:
        """True from the first call of `stop` on."""
        return self._stop_began is not None

    @property
    def all_ready(self) -> bool:
        """True once every process has been ready, apart from abandoned ones and those without room. A later replacement changes
        nothing."""
        return all(slot.been_ready or slot.state == "failed" or slot.no_room or slot.leaving is not None for slot in self.slots)

    def silent_seconds(self, slot: ProcessState) -> float | None:
        """Time since the last report of a process that is ready."""
        return self._clock() - slot.last_report if slot.state == "ready" else None

    def turn(self) -> None:
        """Checks every process once and does what is due. Never waits."""
        now = self._clock()
        self._forgive(now)
        for slot in list(self.slots):
            if slot.process is not None and (ended := slot.process.poll()) is not None:
                self._on_exit(slot, ended, now)
        if not self.stopping:
            self._replace_faulty()
            self._start(now)
            self._end_silent(now)
            self._kill_late_leavers(now)
        if self.stopping and not self.finished:
            self._proceed_with_stop(now)

    def is_current(self, progress: Progress) -> bool:
        """True for a report of a process of this run, in its present incarnation."""
        slot = self._by_name.get(progress.name)
        return slot is not None and slot.process is not None and slot.process.incarnation == progress.incarnation

    def slot(self, name: str) -> ProcessState | None:
        """The process of this name; None if it is not part of the run."""
        return self._by_name.get(name)

    def host_of(self, name: str) -> str:
        """The host on which a process of the run is; empty for this machine."""
        slot = self._by_name.get(name)
        return slot.process.host if slot is not None and slot.process is not None else ""

    def on_progress(self, progress: Progress) -> None:
        """Handles a report. One of another process or of an earlier incarnation is ignored."""
        if not self.is_current(progress):
            return
        slot, now = self._by_name[progress.name], self._clock()
        self._forgive(now)
        if slot.reports:
            self._patience.record_silence(slot.spec.role, now - slot.last_report)
        slot.last_report, slot.reports, slot.resting = now, slot.reports + 1, progress.resting
        if progress.record:
            slot.record = progress.record
        if slot.state == "stopping" and slot.reports == 1:  # no message reached it before; Windows has no signal for it
            self._ask(slot)
        if slot.state == "ready":
            slot.settled = True
        if slot.state == "starting" and progress.state == "ready":
            slot.state, slot.been_ready, slot.ready_at = "ready", True, now
            self._say(f"{slot.name} is ready")

    def stop(self, reason: str, exit_status: int = 0, planned: bool = False) -> None:
        """Begins an orderly stop. A later call changes nothing. `planned`: the run has reached the end that it was given."""
        if self.stopping:
            return
        self._stop_began, self._planned = self._clock(), planned
        self.reason, self.exit_status = reason, exit_status
        for slot in self.slots:
            if slot.process is None and slot.state != "failed":
                slot.state = "stopped"
            elif slot.process is not None and slot.spec.dispensable and not self.finishing_seconds(slot):
                slot.state = "stopping"
                self._ask(slot)

    def finishing_seconds(self, slot: ProcessState) -> float:
        """Seconds that a process may still work after it was asked to stop."""
        return slot.spec.finishing_seconds if self._planned and slot.ready_at is not None else 0.0

    def replan(self, specs: Sequence[ProcessSpec]) -> None:
        """Changes the run to these processes. Missing and abandoned ones are started. Processes that are not in `plans` hand over
        what they hold, end, and are not replaced."""
        now, wanted = self._clock(), {spec.name for spec in specs}
        known, leaving = {}, []
        for slot in self.slots:
            if slot.name in wanted:
                known[slot.name] = slot
                slot.leaving = None  # one that was about to leave is started again when it has ended
                if slot.state == "failed":
                    self._say(f"{slot.name} had been abandoned ({slot.last_exit}); trying it again")
                    slot.state, slot.failures = "waiting", 0
            elif slot.process is not None:
                leaving.append(slot)
                if slot.leaving is None:
                    slot.state, slot.leaving = "stopping", now
                    self._ask(slot)
        self.slots = [known.get(spec.name) or ProcessState(spec) for spec in specs] + leaving
        self._by_name = {slot.name: slot for slot in self.slots}

    def end(self, slot: ProcessState, cause: str) -> None:
        """Kills a process that is to be replaced. `cause` is shown as the reason of its end."""
        if slot.process is not None and slot.killed is None and slot.leaving is None and not self.stopping:
            slot.cause = cause
            self._kill(slot, self._clock())

    @property
    def abandoned(self) -> list[ProcessState]:
        """Processes that are not started again."""
        return [slot for slot in self.slots if slot.state == "failed"]

    def kill_all(self) -> None:
        """Kills every process at once."""
        self._at_once = True
        for slot in self.slots:
            self._kill(slot, self._clock())

    # ---- starting and replacing

    def _start(self, now: float) -> None:
        starts, no_room = 0, list[str]()
        for slot in self.slots:
            due = slot.state == "waiting" or (slot.state == "restarting" and now >= slot.start_at)
            if starts == STARTS_PER_TURN or not due or not all(map(self._is_met, slot.spec.needs)):
                continue
            slot.reports, slot.settled, slot.ready_at, slot.cause, slot.killed = 0, False, None, "", None
            slot.resting = False
            starts += 1
            try:
                slot.process = self._spawn(slot.spec)
            except OSError as error:
                self._on_failure(slot, f"could not be started: {error}", now, hopeless=False)
                continue
            if slot.process is None:
                if not slot.no_room:  # the others are asked in the same turn, so that one line says who waits
                    no_room.append(slot.name)
                    starts -= 1
                slot.no_room = True
                continue
            slot.state, slot.started, slot.last_report, slot.no_room = "starting", now, now, False
        if len(no_room) == 1:
            self._say(f"{no_room[0]} waits: there is no room for it yet")
        elif no_room:
            self._say(f"{listed(no_room)} wait: there is no room for them yet")

    def _is_met(self, role: str) -> bool:
        """True once a process of this role has been ready. A role that works elsewhere, if anywhere, is not waited for."""
        found = [slot for slot in self.slots if slot.spec.role == role]
        elsewhere = all(slot.state == "failed" or (slot.no_room and not slot.spec.vital) for slot in found)
        return elsewhere or any(slot.been_ready for slot in found)

    def _replace_faulty(self) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.fault:
                self.end(slot, slot.process.fault)

    def _on_exit(self, slot: ProcessState, ended: Exit, now: float) -> None:
        slot.process, reason = None, slot.cause or ended.reason
        slot.last_record, slot.record = slot.record or slot.last_record, {}
        if self.stopping:
            slot.last_exit = reason if ended.code else None
            slot.state = "stopped"
            if ended.code and slot.spec.vital and slot.reports and not self._at_once:  # what it held is not saved
                self._say(f"{slot.name} died at the stop ({reason})")
                self.exit_status = self.exit_status or 1
                self.reason += f"; {slot.name} died at the stop ({reason})"
            return
        if slot.leaving is not None:
            self.slots.remove(slot)
            del self._by_name[slot.name]
            self._say(f"{slot.name} has left" + (f" ({ended.reason})" if ended.code else ""))
            return
        if slot.state == "stopping":  # it was asked to leave, but is wanted again
            slot.state = "waiting"
            return
        if ended.with_host:
            slot.state, slot.last_exit, slot.restarts = "waiting", ended.with_host, slot.restarts + 1
            self._say(f"{slot.name} is gone: {ended.with_host}; starting it elsewhere")
            return
        # A restart cannot help where the process says so, or where it refused its settings before it was ever ready.
        hopeless = ended.code == HOPELESS_STATUS or (ended.code == USAGE_ERROR and not slot.been_ready)
        self._on_failure(slot, reason, now, hopeless and ended.explained)

    def _on_failure(self, slot: ProcessState, reason: str, now: float, hopeless: bool) -> None:
        slot.last_exit = reason
        worked = 0.0 if slot.ready_at is None else slot.last_report - slot.ready_at
        slow = LEAK_FACTOR if reason.startswith(OUT_OF_MEMORY) else 1.0  # a process that leaks works well until memory is full
        slot.failures = max(slot.failures - worked / HEALTHY_SECONDS / slow, 0.0) + 1
        if hopeless or slot.failures > self._config.restarts:
            slot.state = "failed"
            after = f" after {slot.restarts} restarts" if slot.restarts else ""
            self._say(f"{slot.name} died ({reason}); abandoned{after}")
            self._fail_run(slot)
            return
        slot.state = "restarting"
        slot.restarts += 1
        delay = restart_seconds(slot.failures, LONGEST_DELAY_SECONDS) * self._jitter()
        slot.start_at = now + delay
        self._say(f"{slot.name} died ({reason}); starting again" + (f" in {delay:.1f} s" if delay else ""))

    def _fail_run(self, culprit: ProcessState) -> None:
        if culprit.spec.dispensable:
            return
        peers = [slot for slot in self.slots if slot.spec.role == culprit.spec.role and slot.leaving is None]
        left = sum(slot.state != "failed" for slot in peers)
        if culprit.spec.vital or not left:
            name = culprit.name if culprit.spec.vital or len(peers) == 1 else f"every {culprit.spec.role}"
            self.stop(f"{name} failed ({culprit.last_exit})", exit_status=1)

    # ---- silence

    def _forgive(self, now: float) -> None:
        for slot in self.slots:
            if slot.process is not None and slot.process.away:
                slot.last_report = now
        if delay := self._patience.delay_seconds(now):
            for slot in self.slots:
                slot.last_report = min(slot.last_report + delay, now)
            if self._stop_began is not None:
                self._stop_began += delay

    def _end_silent(self, now: float) -> None:
        for slot in self.slots:
            silent, limit = now - slot.last_report, self._patience.limit_seconds(slot.spec.role, slot.reports > 0, slot.settled)
            if slot.state in ("starting", "ready") and silent >= limit:
                self.end(slot, f"hung: no report for {silent:.1f} s")

    def _kill_late_leavers(self, now: float) -> None:
        limit = LEAVE_SECONDS + self._config.stop_seconds
        for slot in self.slots:
            since = slot.last_report if slot.leaving is None else slot.leaving  # None: it was asked to leave, but is wanted again
            if slot.state == "stopping" and now >= since + limit and slot.killed is None:
                self._say(f"{slot.name} did not leave in time; killed")
                self._kill(slot, now)

    # ---- stopping

    def _proceed_with_stop(self, now: float) -> None:
        while self._phase < len(STOP_ORDER):
            if self._phase_began is None:
                self._phase_began, self._next_notice = now, now + NOTICE_SECONDS
            roles = STOP_ORDER[self._phase]
            alive = [slot for slot in self.slots if slot.process and (slot.spec.role in roles or self._at_once)]
            for slot in alive:
                if slot.state != "stopping" or slot.leaving is not None:  # a stop leaves less time than leaving alone
                    slot.state, slot.leaving = "stopping", None
                    self._ask(slot)
                if slot.killed is None and (late := self._late(slot, now)):
                    self._say(f"{slot.name} {late}; killed")
                    slot.cause = late
                    self._kill(slot, now)
            if any(slot.killed is None or now < slot.killed + LAST_WAIT_SECONDS for slot in alive):
                if now >= self._next_notice:
                    self._next_notice = now + NOTICE_SECONDS
                    self._say(f"waiting for {', '.join(slot.name for slot in alive)} to stop")
                return
            for slot in alive:
                self._say(f"{slot.name} (pid {slot.process.pid if slot.process else 0}) cannot be killed; stopping without it")
            self._phase, self._phase_began = self._phase + 1, None
        self.finished = True

    def _late(self, slot: ProcessState, now: float) -> str:
        """Why a process that is stopping must be killed; empty while it may go on.

        A process that saves its state may do so for as long as it reports, up to MOST_EXTENSIONS times deploy.stop_seconds. Its
        last report may be as old as its longest silence so far makes likely, and as the size of what it saves needs.
        """
        assert self._stop_began is not None and self._phase_began is not None
        limit, finishing = self._config.stop_seconds, self.finishing_seconds(slot)
        if not (slot.spec.vital or finishing):
            share = 1.0 if slot.spec.dispensable else LEAVING_SHARE
            return "" if now < self._stop_began + share * limit else "did not stop in time"
        saving = slot.record.get("save_bytes", 0.0) / SAVED_BYTES_PER_SECOND
        silent, allowed = now - max(slot.last_report, self._stop_began), self._patience.silence_seconds(slot.spec.role, limit)
        if silent >= allowed + saving:
            return f"did not stop in time: no report for {silent:.1f} s"
        longest = finishing + limit if finishing else MOST_EXTENSIONS * limit
        if now >= self._phase_began + max(longest, allowed) + saving:
            return "did not stop in time, although it reports"
        return ""

    def _kill(self, slot: ProcessState, now: float) -> None:
        if slot.process is not None and slot.killed is None:
            slot.process.kill()
            slot.killed = now
