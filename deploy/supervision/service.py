"""One run, kept alive: the supervisor's mind with real processes, sockets, signals and files."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil
from msgspec import structs

from actors.config import run_seed
from deploy import runs
from deploy.cli import access
from deploy.config.files import write_config
from deploy.config.layers import load_run_config
from deploy.config.run import RunConfig
from deploy.reporting.bottleneck import bottleneck
from deploy.reporting.logs import Log, Terminal
from deploy.reporting.status import EVALUATION_KEYS, Document, Gauge, document, duration, figures
from deploy.reporting.tensorboard import Board, tags
from deploy.supervision import process
from deploy.supervision.assignment import Seats
from deploy.supervision.curriculum import Curriculum
from deploy.supervision.memory import OUT_OF_MEMORY, resident_bytes
from deploy.supervision.orphans import Strays
from deploy.supervision.supervisor import Process, Slot, Supervisor
from deploy.supervision.topology import Plan, topology
from transport.messages import DRAIN_SECONDS, MAX_HEADER_BYTES, Progress, Refused, Scale, Scaling, Stop, Stopping, printable
from transport.metrics import finite
from transport.run_dir import RunDir, write_atomically
from transport.sockets.authenticator import GATE
from transport.sockets.channel import Server
from transport.sockets.keys import OPERATOR, KeysError, role_of
from transport.sockets.limits import Guard

TURN_SECONDS = 0.1
MESSAGES_PER_TURN = 4096  # of all processes
STALE = 0.1  # of an offence: a process that is being replaced may still send word
BOARD_SECONDS = 10.0
STATUS_SECONDS = 1.0
VERDICT_SECONDS = 30.0
STOP_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")


class Service:
    """A run from the first start to the last exit. Made and used in the main thread, by the holder of the run's lock."""

    def __init__(
        self,
        run: RunDir,
        config: RunConfig,
        terminal: Terminal | None,
        stop_after_seconds: float = 0.0,
        plan: Callable[[RunConfig, Path], Sequence[Plan]] = topology,
    ) -> None:
        """Sweeps what a killed supervisor left, binds the control socket; starts nothing. Raises OSError."""
        self._run, self._config, self._stop_after_seconds, self._plan = run, config, stop_after_seconds, plan
        self._steps_before = read_steps(run)
        next_seed = (runs.read_status(run) or {}).get("next_seed") or run_seed(config.seed)
        self._curriculum = Curriculum(run.curriculum)
        self._seats = Seats(config.actors.count, config.actors.envs_per_actor, int(next_seed), self._curriculum.level)
        run.create()
        run.remove_sockets()
        self.log = Log(run, config.deploy.log_bytes, config.deploy.files_kept, terminal, config.deploy.verbosity)
        keys = run.keys("supervisor")
        self._has_keys = keys is not None
        self._control = Server(run.bind_address("supervisor"), MAX_HEADER_BYTES, keys=keys, door="supervisor")
        run.write_endpoint("supervisor", self._control.address)
        self._peers: dict[str, bytes] = {}
        self._gauge = Gauge()
        self._began = time.monotonic()
        self._board = Board(run.tensorboard)
        self._next_board = self._began + BOARD_SECONDS
        self._charted_version: float | None = None
        self._next_status = 0.0
        self._next_verdict = self._began + VERDICT_SECONDS
        self._signals: list[int] = []
        self._strays = Strays()
        self._evaluation: Document = (runs.read_status(run) or {}).get("evaluation") or {}
        self.supervisor = Supervisor(
            plan(config, run.path),
            config.deploy,
            clock=time.monotonic,
            spawn=self._spawn,
            ask=self._ask,
            say=self.say,
        )

    def say(self, text: str) -> None:
        """A line of the supervisor's own."""
        self.log.line("supervisor", text)

    @property
    def steps(self) -> float:
        """Environment steps of the run, those before a stop and resume included."""
        return self._steps_before + self.supervisor.steps

    def run(self) -> int:
        """Runs until the end; returns the exit status. Leaves no process, no socket, no endpoint."""
        numbers = [getattr(signal, name) for name in STOP_SIGNALS if hasattr(signal, name)]
        numbers = [number for number in numbers if number == signal.SIGINT or signal.getsignal(number) != signal.SIG_IGN]  # nohup
        before = {number: signal.signal(number, lambda number, frame: self._signals.append(number)) for number in numbers}
        cores_busy()  # the first call only sets the mark
        GATE.say, print_line = self.say, GATE.say
        self._strays.adopt()
        guard = Guard([self._control.address], resident_bytes([os.getpid()]), self.say)
        try:
            while not self.supervisor.finished:
                self._turn()
                guard.turn()
            self._write_status()
            self._chart()
            self._say_goodbye()
        finally:
            self._end_children()
            self._strays.close()
            self._control.close()
            GATE.say = print_line
            self._board.close()
            self._run.remove_sockets()
            self.log.close()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self.supervisor.exit_status

    def _turn(self) -> None:
        self._obey_signals()
        self.supervisor.turn()
        self._strays.tend(slot.process.pid for slot in self.supervisor.slots if slot.process is not None)
        self._listen(TURN_SECONDS)
        self._check_limits()
        now = time.monotonic()
        if now >= self._next_status:
            self._next_status = now + STATUS_SECONDS
            self._check_memory()
            self._write_status()
        if now >= self._next_board:
            self._next_board = now + BOARD_SECONDS
            self._chart()
        if now >= self._next_verdict and not self.supervisor.stopping:
            self._next_verdict = now + VERDICT_SECONDS
            self.log.verdict(self._verdict())

    def _obey_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if not self.supervisor.stopping:
                self._stop(f"stopped by {signal.Signals(number).name}" if number != signal.SIGINT else "stopped by you")
            elif number == signal.SIGINT:
                self.say("killing everything")
                self.supervisor.kill_all()

    def _stop(self, reason: str) -> None:
        if not self.supervisor.stopping:
            self.say(f"stopping: {reason} (Ctrl-C again kills at once)")
        self.supervisor.stop(reason)

    def _listen(self, timeout_seconds: float) -> None:
        for _ in range(MESSAGES_PER_TURN):
            arrived = self._control.receive(timeout_seconds)
            if arrived is None:
                return
            timeout_seconds = 0
            peer, message, _ = arrived
            if isinstance(message, Progress):
                if self._control.vouch(peer, role_of(message.name), message.name):
                    continue
                if not self.supervisor.knows(message):
                    if not self._has_keys:  # else it may be an actor on another machine
                        self._control.offence(peer, "progress of nobody who belongs to this run", STALE)
                    continue
                message = structs.replace(message, record=finite(message.record))
                self._peers[message.name] = peer
                self.supervisor.heard(message)
                if message.record and (news := self._curriculum.heard(message.name, message.record)):
                    self.say(news)
                    self._seats.set_level(self._curriculum.level)
                self._tell_seat(message.name)
            elif isinstance(message, Scale | Stop) and (reason := self._control.vouch(peer, OPERATOR)):
                self._control.send(peer, Refused(reason))
            elif isinstance(message, Scale):
                before = self._config.actors.count
                self._control.send(peer, Stopping() if self.supervisor.stopping else Scaling(before, message.actors))
                self._scale(message.actors)
            elif isinstance(message, Stop):
                self._control.send(peer, Stopping())
                self._stop(message.reason)
            else:
                self._control.offence(peer, "messages that are not meant for the supervisor")

    def _scale(self, actors: int) -> None:
        """Goes to that many actors; those at work get new places on the ladder of exploration, and new seeds. Who had been given
        up is tried again, also where the number stays."""
        before = self._config.actors.count
        if self.supervisor.stopping:
            return
        if actors == before:
            if self.supervisor.given_up:
                self.supervisor.replan(self._plan(self._config, self._run.path))
            return
        self.say(f"scaling from {before} to {actors} actors")
        if actors > before and self._config.replay.selector == "fifo":
            self.say(
                "rollout batches stay as they are until the run is started again: where there are more environments than "
                "chunks in one, some chunks will be too old and dropped"
            )
        self._config = structs.replace(self._config, actors=structs.replace(self._config.actors, count=actors))
        try:
            write_atomically(self._run.config, write_config(self._config))
        except OSError as error:
            self.say(f"could not write {self._run.config.name} ({error.strerror}): a resume will have {before} actors")
        if self._has_keys:
            access.make_missing(self._run, actors)
        self._seats.renew(actors)
        self.supervisor.replan(self._plan(self._config, self._run.path))
        for name in list(self._peers):
            self._tell_seat(name)

    def _tell_seat(self, name: str) -> None:
        role, _, index = name.partition("-")
        peer = self._peers.get(name)
        if role == "actor" and index.isdigit() and peer is not None and (seat := self._seats.news(int(index))):
            self._control.send(peer, seat)

    def _check_limits(self) -> None:
        total = self._config.total_steps
        if total and self.steps >= total:
            self._stop(f"{self.steps:,.0f} of {total:,} environment steps done")
        if self._stop_after_seconds and time.monotonic() - self._began >= self._stop_after_seconds:
            self._stop(f"{duration(self._stop_after_seconds)} are over")

    def _check_memory(self) -> None:
        """Ends actors that hold too much, before the kernel has to choose whom to end."""
        limit = self._config.actors.memory_bytes
        members = self._strays.members() if limit else {}
        for slot in self.supervisor.slots:
            if slot.plan.role == "actor" and slot.process is not None and slot.process.pid in members:
                held = resident_bytes(members[slot.process.pid])
                if held > limit:
                    cause = f"{OUT_OF_MEMORY}: {held / 1e6:,.0f} MB of {limit / 1e6:,.0f} MB (actors.memory_bytes)"
                    self.supervisor.end(slot, cause)

    def _spawn(self, plan: Plan) -> Process:
        self._peers.pop(plan.name, None)
        if plan.role == "actor":
            seat = self._seats.take(int(plan.name.partition("-")[2]))
            place = ("--environments", str(seat.environments), "--first-seed", str(seat.first_seed), "--level", str(seat.level))
            plan = dataclasses.replace(plan, arguments=(*plan.arguments, *place))
        mark = self._strays.mark()
        child = process.spawn(plan, self.log.line, mark)
        self._strays.began(child.pid, mark)
        self.say(f"starting {plan.name} (pid {child.pid})")
        return child

    def _ask(self, slot: Slot) -> None:
        peer = self._peers.get(slot.name)
        if peer is not None:
            leaving = slot.leaving is not None
            drain_seconds = self._config.deploy.leave_seconds if leaving else DRAIN_SECONDS
            reason = "fewer actors are wanted" if leaving else self.supervisor.reason
            self._control.send(peer, Stop(printable(reason), drain_seconds))
        if isinstance(slot.process, process.Child):
            slot.process.ask()

    def _write_status(self) -> None:
        uptime = time.monotonic() - self._began
        for slot in self.supervisor.slots:
            if slot.plan.role == "evaluator" and "return_mean" in slot.record:
                self._evaluation = dict(figures(slot.record, EVALUATION_KEYS))
        device = read_device(self._run)
        status = document(self._run, self._config, device, self.supervisor, self._gauge, uptime, self.steps, self._evaluation)
        status["next_seed"] = self._seats.next_seed
        if self._curriculum.levels:
            status["curriculum"] = self._curriculum.figures()
        try:
            write_atomically(self._run.status, json.dumps(status).encode())
        except OSError:  # a full disk must not end the run
            pass

    def _chart(self) -> None:
        """A point of each curve; of an evaluation's only when there is a new one."""
        records = {slot.name: slot.record for slot in self.supervisor.slots if slot.record}
        if not records:
            return
        evaluation = records.get("evaluator", {})
        version = evaluation.get("policy_version", self._charted_version)
        if version == self._charted_version:
            evaluation = {}
        self._charted_version = version
        actors = {int(name.partition("-")[2]): record for name, record in records.items() if name.startswith("actor-")}
        values = tags(actors, records.get("replay", {}), records.get("learner", {}), evaluation, self.steps)
        if self._curriculum.levels:
            told = self._curriculum.figures()
            values |= {f"curriculum/{name}": float(value) for name, value in told.items() if value is not None}
        self._board.write(self.steps, values)

    def _verdict(self) -> str:
        records = {slot.name: slot.record for slot in self.supervisor.slots}
        return bottleneck(
            [slot.record for slot in self.supervisor.slots if slot.plan.role == "actor"],
            records.get("replay", {}),
            records.get("learner", {}),
            min_size=0 if self._config.replay.selector == "fifo" else self._config.replay.min_size,
            envs_per_actor=self._config.actors.envs_per_actor,
            cores=len(own_cores()),
            cores_busy=cores_busy(),
        )

    def _say_goodbye(self) -> None:
        verb = "failed" if self.supervisor.exit_status else "stopped"
        self.say(f"run {self._run.name} {verb}: {self.supervisor.reason} · {self.steps:,.0f} environment steps")

    def _end_children(self) -> None:
        # Only an error in this very file leaves any.
        for slot in self.supervisor.slots:
            if slot.process is not None:
                slot.process.kill()


def own_cores() -> list[int]:
    """The cores that this run may use."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(psutil.cpu_count() or 1))


def cores_busy() -> float:
    """The share of them that has been in use, by whomever, since the last call."""
    shares = psutil.cpu_percent(percpu=True)
    own = [shares[core] for core in own_cores() if core < len(shares)] or shares
    return sum(own) / len(own) / 100


def read_device(run: RunDir) -> Document:
    """What the learner computes on, as its newest life has written it."""
    try:
        found = json.loads(run.device.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def read_steps(run: RunDir) -> int:
    """Environment steps that the run had done when it was last up."""
    return int((runs.read_status(run) or {}).get("steps") or 0)


def start_detached(run: RunDir, stop_after_seconds: float) -> Callable[[], int | None]:
    """Starts this module in a session of its own, its output in logs/supervisor.log; returns its `poll`."""
    command = process.python_command("deploy.supervision.service", str(run.path), "--stop-after-seconds", str(stop_after_seconds))
    return process.start_in_background(command, run.log("supervisor"))


def main(arguments: Sequence[str] | None = None) -> int:
    """The background supervisor of `headrace up --detach`."""
    parser = argparse.ArgumentParser(prog="python -m deploy.supervision.service")
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("--stop-after-seconds", type=float, default=0.0)
    options = parser.parse_args(arguments)
    run = RunDir(options.run_dir)
    try:
        with runs.locked(run):
            return Service(run, load_run_config(run.config), None, options.stop_after_seconds).run()
    except (runs.AlreadyUp, KeysError) as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
