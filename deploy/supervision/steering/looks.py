"""Requests for what an actor sees now. The supervisor passes each answer on and does not keep it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.reporting.remote import RemoteActors
from deploy.supervision.steering.orders import Orders, end_of
from deploy.supervision.supervisor import Supervisor
from transport.messages.control import Look, Outcome, Seen
from transport.messages.fields import Message, printable

OPEN_SECONDS = 3.0  # within which an actor must answer; one on another host is asked at its next report, within half a second
MOST_PEERS = 16  # that wait for the same answer


@dataclass
class _Open:
    """A question to an actor that is not answered yet."""

    look: Look
    until: float
    peers: list[bytes]
    told: bool


class Looks:
    """Passes questions on, one at a time for each actor. The clock is a parameter, so that tests can replay histories."""

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

    def take(self, peer: bytes, look: Look) -> Outcome | None:
        """Asks the actor, unless it has just been asked. Returns why not; None: its answer will be passed on."""
        if reason := self._refusal(look.actor):
            return Outcome("refused", reason)
        now, found = self._clock(), self._open.get(look.actor)
        if found is not None and now < found.until:
            if peer not in found.peers and len(found.peers) < MOST_PEERS:
                found.peers.append(peer)
            return None
        told = self._supervisor.plans(look.actor) and self._send(look.actor, look)
        self._open[look.actor] = _Open(look, now + OPEN_SECONDS, [peer], told)
        return None

    def news(self, name: str) -> Look | None:
        """What an actor that was not started here must be told, now that it has reported."""
        found = self._open.get(name)
        if found is None or found.told:
            return None
        found.told = True
        return found.look

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        """Passes an answer on. One that comes too late is dropped."""
        found = self._open.get(seen.actor)
        if found is None or found.look.number != seen.number:
            return
        del self._open[seen.actor]
        for peer in found.peers:
            self._reply(peer, seen, parts)

    def _refusal(self, name: str) -> str:
        """Why an actor cannot show anything now, in a line; empty if it can."""
        slot = self._supervisor.slot(name)
        if slot is None and name not in self._remote.records:
            return f"run {self._run} has no {name} that is at work"
        if self._orders.paused:
            return f"run {self._run} is paused, so {name} rests"
        if slot is not None and slot.state != "ready":
            return f"{name} is {'abandoned' if slot.state == 'failed' else slot.state}{end_of(slot)}"
        return ""
