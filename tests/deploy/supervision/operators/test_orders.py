"""Orders of operators as histories: a supervisor with a made-up clock and made-up processes."""

from __future__ import annotations

import pytest

from deploy.places.base import Exit
from deploy.process_spec import ProcessSpec
from deploy.supervision.operators.orders import KEPT, Orders
from deploy.supervision.supervisor import Supervisor
from tests.deploy.supervision.test_supervisor import SPECS, World
from transport.messages.control import Answer, Order, OrderOutcome, Progress, What
from transport.messages.fields import Message

EVALUATOR = ProcessSpec("evaluator", "evaluator", "actors.evaluation.evaluator", (), needs=("learner",), dispensable=True)


class Steered(World):
    """A run whose operator gives orders. Processes rest and answer only when the test says so."""

    def __init__(self, specs: tuple[ProcessSpec, ...] = (*SPECS, EVALUATOR)) -> None:
        super().__init__(specs=specs)
        self.sent: list[tuple[str, Message]] = []
        self.number = 0
        assert isinstance(self.supervisor, Supervisor)
        self.orders = Orders(
            "mine",
            self.supervisor,
            lambda name, message: self.sent.append((name, message)),
            self.lines.append,
            clock=lambda: self.now,
            wall=lambda: 1000.0 + self.now,
        )
        self.supervisor.turn()
        for name in ("replay", "learner", "actor-0", "actor-1", "evaluator"):
            self.supervisor.turn()
            if name in self.processes:
                self.report(name)
        self.sent.clear()

    def report(self, name: str, resting: bool = False, answer: Answer | None = None) -> None:
        report = Progress(name, self.processes[name].incarnation, "ready", 1, {}, resting=resting, answer=answer)
        self.supervisor.on_progress(report)
        self.orders.on_progress(report)

    def order(self, what: What) -> OrderOutcome:
        """A new order."""
        self.number += 1
        return self.again(what)

    def again(self, what: What) -> OrderOutcome:
        """The newest order once more, as an operator repeats it."""
        return self.orders.carry_out(Order(what, self.number))

    def rest(self, *names: str) -> None:
        for name in names:
            self.report(name, resting=True)

    def told(self, name: str) -> list[What]:
        """What a process was told since the last call."""
        found = [message.what for to, message in self.sent if to == name and isinstance(message, Order)]
        self.sent = [(to, message) for to, message in self.sent if to != name]
        return found


def test_a_pause_is_done_when_all_rest_but_the_evaluator_which_may_have_been_ordered_to_work() -> None:
    world = Steered()
    assert world.order("pause").result == "waiting"
    assert all(world.told(name) == ["pause"] for name in ("replay", "learner", "actor-0", "actor-1", "evaluator"))
    world.rest("replay", "actor-0")
    assert "still at work: the learner, the actor" in world.again("pause").text
    world.rest("learner", "actor-1")
    assert world.again("pause") == OrderOutcome("done", "run mine is paused; `headrace unpause` goes on")
    assert [line for line in world.lines if line.startswith("paus")][1:] == [
        "paused: actors and learner rest; `headrace unpause` goes on"
    ]


def test_a_run_that_is_still_starting_can_be_paused_and_says_so() -> None:
    world = Steered()
    world.supervisor.replan([*SPECS, EVALUATOR, ProcessSpec("actor-2", "actor", "actors", (), needs=("learner",))])
    world.order("pause")
    world.rest("replay", "learner", "actor-0", "actor-1")
    assert world.again("pause").text == (
        "run mine is paused; processes that are still starting will rest as soon as they are ready; `headrace unpause` goes on"
    )
    assert not any(line.startswith("paused") for line in world.lines)
    world.supervisor.turn()
    world.rest("actor-2")
    assert any(line.startswith("paused") for line in world.lines)


def test_a_process_that_does_not_rest_is_told_with_each_report_also_when_it_is_a_new_one() -> None:
    world = Steered()
    world.order("pause")
    world.rest("replay", "learner", "actor-0", "actor-1", "evaluator")
    world.sent.clear()
    world.rest("actor-0")
    assert world.told("actor-0") == []
    world.processes["actor-0"].ended = Exit(-9)
    world.supervisor.turn()
    world.supervisor.turn()
    assert not next(slot for slot in world.supervisor.slots if slot.name == "actor-0").resting
    for _ in range(2):
        world.report("actor-0")
    assert world.told("actor-0") == ["pause", "pause"], "one message may be lost"
    assert world.again("pause").result == "waiting"
    world.order("unpause")
    world.sent.clear()
    world.rest("learner")
    assert world.told("learner") == ["unpause"]


def test_the_working_clock_stands_still_in_a_pause() -> None:
    world = Steered()
    world.now = 100.0
    assert world.orders.working_seconds == 100.0
    world.order("pause")
    assert world.orders.paused_since == 1100.0
    world.now = 700.0
    assert world.orders.working_seconds == 100.0
    world.order("unpause")
    world.now = 710.0
    assert world.orders.working_seconds == 110.0 and world.orders.paused_since is None


def test_what_is_so_already_is_said_and_an_order_is_carried_out_once() -> None:
    world = Steered()
    assert world.order("unpause") == OrderOutcome("done", "run mine is not paused")
    world.order("pause")
    paused = Order("pause", world.number)
    assert "already" in world.order("pause").text
    assert world.order("unpause") == OrderOutcome("done", "run mine goes on")
    late = world.orders.carry_out(paused)
    assert late.result == "done" and "another operator has unpaused" in late.text and not world.orders.paused


def test_a_checkpoint_is_the_learner_s_and_its_answer_is_the_outcome() -> None:
    world = Steered()
    assert world.order("checkpoint").result == "waiting" and world.again("checkpoint").result == "waiting"
    assert world.told("learner") == ["checkpoint", "checkpoint"], "repeated, as one may be lost"
    answer = Answer(world.number, True, "wrote epoch-3")
    world.report("actor-0", answer=answer)  # it was not asked
    assert world.again("checkpoint").result == "waiting"
    world.report("learner", answer=answer)
    world.report("learner", answer=answer)  # it is repeated, so that none is lost
    assert world.orders.answered == [("checkpoint", "learner", "wrote epoch-3")]
    world.told("learner")
    assert world.again("checkpoint") == OrderOutcome("done", "wrote epoch-3") and world.told("learner") == []
    world.order("checkpoint")
    world.report("learner", answer=Answer(world.number, False, "No space left"))
    assert world.again("checkpoint") == OrderOutcome("failed", "No space left")


def test_two_operators_get_each_their_own_answer() -> None:
    world = Steered()
    for _ in range(2):
        world.order("checkpoint")
    world.report("learner", answer=Answer(2, True, "second"))
    world.report("learner", answer=Answer(1, True, "first"))
    assert [world.orders.carry_out(Order("checkpoint", number)).text for number in (1, 2)] == ["first", "second"]


def test_a_learner_that_is_not_ready_or_ends_is_the_reason() -> None:
    world = Steered()
    world.order("checkpoint")
    world.processes["learner"].ended = Exit(-9)
    world.supervisor.turn()
    outcome = world.again("checkpoint")
    assert outcome.result == "failed" and "ended before it answered (killed by SIGKILL)" in outcome.text
    outcome = world.order("checkpoint")
    assert outcome.result == "failed" and "try again when it is ready" in outcome.text


def test_an_evaluation_needs_an_evaluator_and_a_run_that_goes_on() -> None:
    without = Steered(SPECS)
    assert without.order("evaluate") == OrderOutcome("refused", "run mine has no evaluator")
    world = Steered()
    assert world.order("evaluate").result == "waiting" and world.told("evaluator") == ["evaluate"]
    world.supervisor.stop("enough")
    for what in ("pause", "unpause", "checkpoint", "evaluate"):
        assert world.order(what) == OrderOutcome("refused", "run mine is stopping")  # type: ignore[arg-type]


def test_the_numbers_of_orders_do_not_fill_the_memory() -> None:
    world = Steered()
    for _ in range(3 * KEPT):
        world.order("checkpoint")
    assert len(world.orders._known) == KEPT


@pytest.mark.parametrize("paused", [False, True])
def test_a_process_of_elsewhere_is_told_what_differs(paused: bool) -> None:
    world = Steered()
    if paused:
        world.order("pause")
    there = [world.orders.pending_order(Progress("actor-9", 7, "ready", 1, {}, resting=resting)) for resting in (False, True)]
    assert [order and order.what for order in there] == (["pause", None] if paused else [None, "unpause"])


def test_neither_an_operator_nor_a_condition_ends_the_pause_of_the_other() -> None:
    world = Steered()
    world.orders.on_condition("on battery")
    assert world.orders.because == "on battery" and world.told("actor-0") == ["pause"]
    world.rest("replay", "learner", "actor-0", "actor-1")
    still = "run mine rests: on battery; it goes on by itself (deploy.pause_on)"
    assert world.order("unpause") == OrderOutcome("refused", still)
    assert world.order("pause").text == "run mine is paused; `headrace unpause` goes on"
    world.orders.on_condition("")
    assert world.orders.paused and world.orders.because == "ordered by an operator"
    world.orders.on_condition("on battery")
    assert world.order("unpause").text == "run mine still rests: on battery; it goes on by itself (deploy.pause_on)"
    assert world.orders.paused and world.told("actor-0") == []
    world.now += 100.0
    world.orders.on_condition("")
    assert not world.orders.paused and world.told("actor-0") == ["unpause"] and world.orders.working_seconds < 100.0
    assert [line for line in world.lines if "paus" in line or "going on" in line] == [
        "pausing, on battery: actors finish their step, the learner its update",
        "paused: actors and learner rest; it goes on by itself (deploy.pause_on)",
        "going on, no longer on battery",
    ]


def test_a_second_condition_neither_interrupts_a_pause_nor_says_more() -> None:
    world = Steered()
    world.orders.on_condition("on battery")
    lines = list(world.lines)
    world.orders.on_condition("on battery and behind a full-screen program")
    world.orders.on_condition("behind a full-screen program")
    assert world.lines == lines and world.orders.because == "behind a full-screen program"
