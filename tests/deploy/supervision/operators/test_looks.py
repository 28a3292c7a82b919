"""Looks of operators at actors as histories: a supervisor with a made-up clock and made-up processes."""

from __future__ import annotations

from collections.abc import Sequence

from deploy.places.base import Exit
from deploy.reporting.remote import RemoteActors
from deploy.supervision.operators.orders import MOST_PEERS, OPEN_SECONDS, Looks
from tests.deploy.supervision.operators.test_orders import Steered
from transport.messages.control import Look, OrderOutcome, Progress, Seen
from transport.messages.fields import Message


class Watched(Steered):
    """A run at which operators look. Actors answer only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: list[tuple[bytes, Message, Sequence[bytes]]] = []
        self.remote = RemoteActors(lambda: self.now, lambda name, text: None)
        self.looks = Looks("mine", self.supervisor, self.remote, self.orders, self.send, self.reply, clock=lambda: self.now)

    def send(self, name: str, message: Message) -> bool:
        self.sent.append((name, message))
        return True

    def reply(self, peer: bytes, message: Message, parts: Sequence[bytes]) -> None:
        self.replies.append((peer, message, parts))

    def look(self, number: int, peer: bytes = b"page", actor: str = "actor-0") -> OrderOutcome | None:
        return self.looks.ask(peer, Look(actor, number))

    def questions(self) -> list[tuple[str, int]]:
        """The actors that were asked, with the numbers, since the last call."""
        found = [(to, message.number) for to, message in self.sent if isinstance(message, Look)]
        self.sent.clear()
        return found

    def answer(self, number: int, actor: str = "actor-0") -> None:
        self.looks.seen(Seen(actor, number, 1, 1, 0.0), [b"frame"])


def test_an_actor_is_asked_once_and_all_who_look_get_its_answer() -> None:
    world = Watched()
    assert world.look(1, b"one") is None and world.look(2, b"two") is None and world.look(3, b"two") is None
    assert world.questions() == [("actor-0", 1)]
    assert world.look(4, b"one", "actor-1") is None and world.questions() == [("actor-1", 4)]
    world.answer(1)
    assert [(peer, parts) for peer, _, parts in world.replies] == [(b"one", [b"frame"]), (b"two", [b"frame"])]
    world.answer(1)
    assert len(world.replies) == 2, "nothing is kept"
    assert world.look(5) is None and world.questions() == [("actor-0", 5)]


def test_an_actor_that_does_not_answer_is_asked_again_and_a_late_answer_is_dropped() -> None:
    world = Watched()
    world.look(1)
    world.now += OPEN_SECONDS - 0.1
    world.look(2)
    assert world.questions() == [("actor-0", 1)]
    world.now += 0.2
    world.look(3)
    assert world.questions() == [("actor-0", 3)]
    world.answer(1)
    assert not world.replies
    world.answer(3)
    assert len(world.replies) == 1


def test_so_many_may_wait_for_one_answer() -> None:
    world = Watched()
    for number in range(MOST_PEERS + 5):
        world.look(number, str(number).encode())
    world.answer(0)
    assert len(world.replies) == MOST_PEERS


def test_an_actor_that_cannot_answer_gives_a_line() -> None:
    world = Watched()
    assert world.look(1, actor="actor-9") == OrderOutcome("refused", "run mine has no actor-9 that is at work")
    world.processes["actor-0"].ended = Exit(-9)
    world.supervisor.turn()
    assert world.look(2) == OrderOutcome("refused", "actor-0 is starting (killed by SIGKILL)")
    world.order("pause")
    assert world.look(3, actor="actor-1") == OrderOutcome("refused", "run mine is paused, so actor-1 rests")
    assert world.questions() == [] and not world.replies


def test_an_actor_that_was_not_started_here_is_told_when_it_reports() -> None:
    world = Watched()
    world.remote.on_progress(Progress("actor-9", 5, "ready", 1, {"steps": 1.0}))
    assert world.looks.pending_look("actor-9") is None
    assert world.look(1, actor="actor-9") is None and world.questions() == [], "its address is not kept"
    assert world.looks.pending_look("actor-9") == Look("actor-9", 1) and world.looks.pending_look("actor-9") is None
    world.answer(1, "actor-9")
    assert len(world.replies) == 1
