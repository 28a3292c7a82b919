"""Passes on what a person presses who steers an actor, and what the actor shows then. An actor has one person at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from deploy.supervision.operators.orders import OPEN_SECONDS, Looks, Orders
from transport.messages.control import STEER_SECONDS, OrderOutcome, Seen, Steer
from transport.messages.fields import Message

LEFT = "the person who steered it has left"


@dataclass
class _Held:
    """An actor that a person steers."""

    steer: Steer  # the newest
    peer: bytes  # that sent it
    until: float  # without a sign of the person
    begun: bool = False  # the actor has let them


class Steering:
    """Who steers which actor. The clock is a parameter, so that tests can replay histories."""

    def __init__(
        self,
        looks: Looks,
        orders: Orders,
        send: Callable[[str, Message], bool],
        reply: Callable[[bytes, Message, Sequence[bytes]], object],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`send` reaches a process by name, `reply` an operator."""
        self._looks, self._orders = looks, orders
        self._send, self._reply, self._say, self._clock = send, reply, say, clock
        self._held: dict[str, _Held] = {}  # by actor

    @property
    def steered(self) -> list[str]:
        """The actors that a person steers."""
        return [name for name, held in self._held.items() if held.begun]

    def ask(self, peer: bytes, steer: Steer) -> OrderOutcome | None:
        """Passes it on to the actor. Returns a refusal, or None: its answer will be passed on."""
        name, now, held = steer.actor, self._clock(), self._held.get(steer.actor)
        if held is not None and held.steer.person != steer.person:
            return OrderOutcome("refused", f"another person steers {name}")
        if held is None and steer.ends:
            return OrderOutcome("done", f"you do not steer {name} any more")
        if reason := self._looks.refusal(name):
            return OrderOutcome("refused", reason)
        if not self._send(name, steer):
            return OrderOutcome("refused", f"{name} cannot be steered from here: another user has started it, elsewhere")
        begun = held is not None and held.begun
        self._held[name] = _Held(steer, peer, now + OPEN_SECONDS, begun)
        return None

    def seen(self, seen: Seen, parts: Sequence[bytes]) -> None:
        """Passes an answer to a Steer on; other answers are not for here."""
        held = self._held.get(seen.actor)
        if held is None or held.steer.number != seen.number:
            return
        if seen.refused:
            self._reply(held.peer, OrderOutcome("refused", seen.refused), ())
        else:
            self._reply(held.peer, seen, parts)
        held.until = self._clock() + STEER_SECONDS
        if not seen.steered:
            self._end(seen.actor, "a person has handed back" if held.steer.ends else LEFT)
        elif not held.begun:
            held.begun = True
            self._tell("steered", seen.actor, "a person has taken over")

    def turn(self) -> None:
        """Notices people who have left without a word."""
        now = self._clock()
        for name in [name for name, held in self._held.items() if now > held.until]:
            self._end(name, LEFT)

    def _end(self, name: str, text: str) -> None:
        if self._held.pop(name).begun:
            self._tell("handed_back", name, text)

    def _tell(self, kind: str, name: str, text: str) -> None:
        self._orders.answered.append((kind, name, text))
        self._say(f"{name}: {text}")
