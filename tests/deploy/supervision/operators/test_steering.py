"""People who steer actors as histories: a supervisor with a made-up clock and made-up processes."""

from __future__ import annotations

from deploy.places.base import Exit
from deploy.supervision.operators.orders import OPEN_SECONDS
from deploy.supervision.operators.steering import Steering
from tests.deploy.supervision.operators.test_looks import Watched
from transport.messages.control import STEER_SECONDS, OrderOutcome, Seen, Steer
from transport.messages.fields import Message

MINE, YOURS = 1, 2


class Wheel(Watched):
    """A run whose actors people steer. Actors answer only when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.steering = Steering(self.looks, self.orders, self.send, self.reply, self.lines.append, clock=lambda: self.now)
        self.last = 0

    def steer(self, person: int, actor: str = "actor-0", ends: bool = False) -> Message | None:
        self.last += 1
        return self.steering.ask(str(person).encode(), Steer(actor, self.last, person, ("left",), ends))

    def seen(self, steered: bool = True, actor: str = "actor-0", number: int = 0, refused: str = "") -> None:
        self.steering.seen(Seen(actor, number or self.last, 1, 1, 0.0, steered=steered, refused=refused), [b"frame"])

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.steering.turn()

    def words(self) -> list[str]:
        return [text for _, _, text in self.orders.answered]

    def history(self) -> list[tuple[str, str]]:
        found = [(kind, name) for kind, name, _ in self.orders.answered]
        self.orders.answered.clear()
        return found


def test_one_person_at_a_time_steers_an_actor_and_gets_its_answers() -> None:
    world = Wheel()
    assert world.steer(MINE) is None
    assert world.steer(YOURS) == OrderOutcome("refused", "another person steers actor-0")
    assert world.steer(YOURS, "actor-1") is None, "another actor is free"
    world.seen(actor="actor-1")
    world.seen(number=1)
    assert [(peer, parts) for peer, _, parts in world.replies] == [(b"2", [b"frame"]), (b"1", [b"frame"])]
    assert world.steering.steered == ["actor-0", "actor-1"] and world.history() == [
        ("steered", "actor-1"),
        ("steered", "actor-0"),
    ]
    assert world.steer(MINE, ends=True) is None
    world.seen(steered=False)
    assert world.words() == ["a person has handed back"]
    assert world.history() == [("handed_back", "actor-0")] and world.steer(YOURS) is None
    assert [(to, message.person) for to, message in world.sent if isinstance(message, Steer)] == [
        ("actor-0", MINE),
        ("actor-1", YOURS),
        ("actor-0", MINE),
        ("actor-0", YOURS),
    ]


def test_who_says_nothing_for_a_second_has_left_and_the_next_may_steer() -> None:
    world = Wheel()
    for _ in range(5):
        world.steer(MINE)
        world.wait(0.05)
        world.seen()
        world.wait(STEER_SECONDS - 0.1)
    assert world.steering.steered == ["actor-0"] and world.steer(YOURS) == OrderOutcome(
        "refused", "another person steers actor-0"
    )
    world.wait(0.2)
    assert world.history() == [("steered", "actor-0"), ("handed_back", "actor-0")] and world.steer(YOURS) is None


def test_a_person_of_whom_the_actor_has_seen_no_sign_has_left() -> None:
    world = Wheel()
    world.steer(MINE)
    world.seen()
    world.seen(steered=False)
    assert world.words() == ["a person has taken over", "the person who steered it has left"] and not world.steering.steered


def test_a_person_whose_actor_is_slow_to_answer_keeps_it_for_a_while() -> None:
    world = Wheel()
    world.steer(MINE)
    world.seen()
    world.steer(MINE)
    world.wait(OPEN_SECONDS - 0.1)
    assert world.steering.steered == ["actor-0"]
    world.wait(0.2)
    assert not world.steering.steered
    world.seen()
    assert len(world.replies) == 1, "too late"


def test_an_actor_that_nobody_can_steer_says_why_and_is_held_by_nobody() -> None:
    world = Wheel()
    world.steer(MINE)
    world.seen(steered=False, refused="no keys")
    assert world.replies[-1][1] == OrderOutcome("refused", "no keys") and world.history() == []
    world.processes["actor-0"].ended = Exit(-9)
    world.supervisor.turn()
    assert world.steer(YOURS) == OrderOutcome("refused", "actor-0 is starting (killed by SIGKILL)")
    assert world.steer(YOURS, "actor-9") == OrderOutcome("refused", "run mine has no actor-9 that is at work")
    world.order("pause")
    assert world.steer(MINE, "actor-1") == OrderOutcome("refused", "run mine is paused, so actor-1 rests")
    assert world.steer(MINE, "actor-1", ends=True) == OrderOutcome("done", "you do not steer actor-1 any more")
