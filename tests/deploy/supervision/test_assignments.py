from deploy.supervision.assignments import Assignments
from transport.messages.control import Assignment


def started(assignments: Assignments, index: int) -> Assignment:
    """Starts an actor."""
    found = assignments.for_start(index)
    assignments.started(index)
    return found


def test_assignments_lie_side_by_side_and_share_one_ladder() -> None:
    assignments = Assignments(3, 4, 1000)
    assert [started(assignments, index) for index in range(3)] == [Assignment(4 * i, 12, 1000 + 4 * i) for i in range(3)]


def test_a_new_incarnation_of_an_actor_has_other_seeds() -> None:
    assignments = Assignments(2, 4, 0)
    first = started(assignments, 1)
    again = started(assignments, 1)
    assert (again.offset, again.environments) == (first.offset, first.environments) and again.first_seed == 8
    assert assignments.next_seed == 12


def test_an_actor_that_found_no_room_uses_no_seeds_up() -> None:
    assignments = Assignments(2, 4, 0)
    assert assignments.for_start(1) == assignments.for_start(1) == Assignment(4, 8, 4)
    started(assignments, 1)
    assert assignments.for_start(1) == assignments.for_start(1) == Assignment(4, 8, 8) and assignments.next_seed == 12


def test_after_a_rescale_each_actor_is_sent_its_assignment_once() -> None:
    assignments = Assignments(2, 4, 0)
    assert started(assignments, 0) and assignments.pending(0) is None
    assignments.renew(3)
    assert assignments.pending(0) == Assignment(0, 12, 8) and assignments.pending(0) is None
    assert started(assignments, 2) == Assignment(8, 12, 16) and assignments.pending(2) is None


def test_an_actor_that_is_no_longer_wanted_is_sent_nothing() -> None:
    assignments = Assignments(3, 4, 0)
    assignments.renew(1)
    assert assignments.pending(2) is None
