"""Carries out what operators ask of a run: pause, unpause, checkpoint, evaluate, and looks at what an actor sees.

A run rests while an operator wants that or while `deploy.pause_on` does; neither ends the pause of the other.

A pause is kept in memory only: a new supervisor begins unpaused. Each report of a process says whether it rests, and where that
differs the supervisor sends the order again. So a lost message costs one report, and a replaced process rests, too.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.reporting.events import BY_OPERATOR
from deploy.reporting.remote import RemoteActors
from deploy.supervision.processes import ProcessState
from deploy.supervision.supervisor import Supervisor
from transport.messages.control import Answer, Look, Order, OrderOutcome, Progress, Seen
from transport.messages.fields import Message, printable

ADDRESSEES = {"checkpoint": "learner", "evaluate": "evaluator"}
KEPT = 64  # orders whose numbers are known: one that comes again is not carried out again
GO_ON = "`headrace unpause` goes on"
BY_ITSELF = "it goes on by itself (deploy.pause_on)"
OPEN_SECONDS = 3.0  # within which an actor must answer; one on another host is asked at its next report, within half a second
MOST_PEERS = 16  # waiting for one answer


class Orders:
    """Carries out orders. Clocks are parameters, so that tests can replay histories."""

    def __init__(
        self,
        run: str,
        supervisor: Supervisor,
        send: Callable[[str, Message], object],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """`run` is its name; `send` reaches a process by name. `wall` gives seconds since 1970."""
        self.paused_since: float | None = None  # seconds since 1970
        self._by_operator, self._condition = False, ""  # who wants the pause; the condition of `deploy.pause_on` that holds
        self._run, self._supervisor = printable(run), supervisor
        self._send, self._say, self._clock, self._wall = send, say, clock, wall
        self._paused_at: float | None = None
        self._rested_seconds = 0.0  # in the pauses before
        self._all_rest = False
        self.answered: list[tuple[str, str, str]] = []  # order, process and answer; the reader empties it
        self._known: OrderedDict[int, int | Answer | None] = OrderedDict()  # by number: whose incarnation it was sent to

    @property
    def paused(self) -> bool:
        return self.paused_since is not None

    @property
    def because(self) -> str:
        """Why the run is paused; empty while it is not."""
        return self._condition or (BY_OPERATOR if self._by_operator else "")

    @property
    def working_seconds(self) -> float:
        """A clock that stands still while the run is paused."""
        return (self._clock() if self._paused_at is None else self._paused_at) - self._rested_seconds

    def carry_out(self, order: Order) -> OrderOutcome:
        """Carries out a new order, and returns its outcome so far."""
        if self._supervisor.stopping:
            return OrderOutcome("refused", f"run {self._run} is stopping")
        if order.what in ADDRESSEES:
            return self._pass_on(order)
        wanted = order.what == "pause"
        if order.number not in self._known:
            if self._by_operator == wanted:
                return self._already(wanted)
            self._remember(order.number, None)
            self._by_operator = wanted
            self._follow("as ordered")
        if self._by_operator != wanted:
            return OrderOutcome("done", f"another operator has {'un' if wanted else ''}paused run {self._run} since then")
        if not self.paused:
            return OrderOutcome("done", f"run {self._run} goes on")
        if not wanted:
            return OrderOutcome("done", f"run {self._run} still rests: {self._condition}; {BY_ITSELF}")
        if busy := self._busy():
            return OrderOutcome("waiting", f"run {self._run} is being paused; still at work: {busy}")
        starting = "" if self._supervisor.all_ready else "; processes that are still starting will rest as soon as they are ready"
        return OrderOutcome("done", f"run {self._run} is paused{starting}; {GO_ON}")

    def on_condition(self, condition: str) -> None:
        """Takes the condition of `deploy.pause_on` that holds now, in words; empty where none does."""
        over, self._condition = self._condition, condition
        if bool(condition) != bool(over):
            self._follow(condition or f"no longer {over}")

    def on_progress(self, progress: Progress) -> None:
        """Handles a report of a process of the run."""
        if (order := self.pending_order(progress)) is not None:
            self._send(progress.name, order)
        answer = progress.answer
        if answer is not None and self._known.get(answer.number) == progress.incarnation:
            self._known[answer.number] = answer
            what = next(what for what, name in ADDRESSEES.items() if name == progress.name)
            self.answered.append((what, progress.name, answer.text))
        if self.paused and not self._all_rest and self._supervisor.all_ready and not self._busy():
            self._all_rest = True
            self._say(f"paused: actors and learner rest; {GO_ON if self._by_operator else BY_ITSELF}")

    def pending_order(self, progress: Progress) -> Order | None:
        """The order that a reporting process has missed; None if there is none."""
        return None if progress.resting == self.paused else self._state()

    def _state(self) -> Order:
        return Order("pause" if self.paused else "unpause", 0)

    def _follow(self, why: str) -> None:
        """Pauses the run, or lets it go on, where what is wanted has changed that."""
        if bool(self.because) == self.paused:
            return
        if not self.paused:
            self._paused_at, self.paused_since, self._all_rest = self._clock(), self._wall(), False
            self._say(f"pausing, {why}: actors finish their step, the learner its update")
        else:
            assert self._paused_at is not None
            self._rested_seconds += self._clock() - self._paused_at
            self._paused_at = self.paused_since = None
            self._say(f"going on, {why}")
        for slot in self._supervisor.slots:
            self._send(slot.name, self._state())

    def _already(self, wanted: bool) -> OrderOutcome:
        if self.paused_since is None:
            return OrderOutcome("done", f"run {self._run} is not paused")
        if not wanted:
            return OrderOutcome("refused", f"run {self._run} rests: {self._condition}; {BY_ITSELF}")
        return OrderOutcome("done", f"run {self._run} is paused already, since {time_text(self.paused_since)}")

    def _busy(self) -> str:
        """The processes that do not rest yet, by role; empty where there is none. An ordered evaluation is not waited for."""
        slots = (slot for slot in self._supervisor.slots if slot.state == "ready" and not slot.spec.dispensable)
        counts = Counter(slot.spec.role for slot in slots if not slot.resting)
        return ", ".join(f"{count} {role}s" if count > 1 else f"the {role}" for role, count in counts.items())

    def _pass_on(self, order: Order) -> OrderOutcome:
        name = ADDRESSEES[order.what]
        slot = self._supervisor.slot(name)
        if slot is None:
            return OrderOutcome("refused", f"run {self._run} has no {name}")
        if order.number not in self._known:
            if slot.state != "ready" or slot.process is None:
                state = "abandoned" if slot.state == "failed" else slot.state
                return OrderOutcome("failed", f"the {name} is {state}{end_of(slot)}; try again when it is ready")
            self._remember(order.number, slot.process.incarnation)
        known = self._known[order.number]
        if isinstance(known, Answer):
            return OrderOutcome("done" if known.done else "failed", known.text)
        if slot.process is None or slot.process.incarnation != known:
            return OrderOutcome("failed", f"the {name} has ended before it answered{end_of(slot)}")
        self._send(name, order)
        return OrderOutcome("waiting", f"the {name} has not answered yet; it finishes what it does")

    def _remember(self, number: int, what: int | None) -> None:
        self._known[number] = what
        while len(self._known) > KEPT:
            self._known.popitem(last=False)


@dataclass
class _Open:
    """A request that the actor has not answered yet."""

    look: Look
    until: float
    peers: list[bytes]
    sent: bool


class Looks:
    """Keeps at most one open request per actor. The clock is a parameter, so that tests can replay histories."""

    def __init__(
        self,
        run: str,
        supervisor: Supervisor,
        remote: RemoteActors,
        orders: Orders,
        send: Callable[[str, Message], bool],
        reply: Callable[[bytes, Message, Sequence[bytes]], object],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`run` is its name; `send` reaches a process by name, `reply` an operator."""
        self._run, self._supervisor, self._remote, self._orders = printable(run), supervisor, remote, orders
        self._send, self._reply, self._clock = send, reply, clock
        self._open: dict[str, _Open] = {}  # by actor

    def ask(self, peer: bytes, look: Look) -> OrderOutcome | None:
        """Asks the actor, unless a request is open. Returns a refusal, or None: its answer will be passed on."""
        if reason := self.refusal(look.actor):
            return OrderOutcome("refused", reason)
        now, found = self._clock(), self._open.get(look.actor)
        if found is not None and now < found.until:
            if peer not in found.peers and len(found.peers) < MOST_PEERS:
                found.peers.append(peer)
            return None
        sent = self._supervisor.slot(look.actor) is not None and self._send(look.actor, look)
        self._open[look.actor] = _Open(look, now + OPEN_SECONDS, [peer], sent)
        return None

    def pending_look(self, name: str) -> Look | None:
        """The request that a reporting actor from elsewhere has not received yet."""
        found = self._open.get(name)
        if found is None or found.sent:
            return None
        found.sent = True
        return found.look

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        """Passes an answer on. One that comes too late is dropped."""
        found = self._open.get(seen.actor)
        if found is None or found.look.number != seen.number:
            return
        del self._open[seen.actor]
        for peer in found.peers:
            self._reply(peer, seen, parts)

    def refusal(self, name: str) -> str:
        """The reason why an actor cannot answer now; empty if it can."""
        slot = self._supervisor.slot(name)
        if slot is None and name not in self._remote.records:
            return f"run {self._run} has no {name} that is at work"
        if self._orders.paused:
            return f"run {self._run} is paused, so {name} rests"
        if slot is not None and slot.state != "ready":
            return f"{name} is {'abandoned' if slot.state == 'failed' else slot.state}{end_of(slot)}"
        return ""


def end_of(slot: ProcessState) -> str:
    """How its last incarnation ended, in brackets; empty if none has."""
    return printable(f" ({slot.last_exit})")[:300] if slot.last_exit else ""


def time_text(since: float) -> str:
    """`since`: seconds since 1970. The time of the day, with the date where that is not today's."""
    then, today = time.localtime(since), time.localtime()
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%Y-%m-%d %H:%M:%S", then)
