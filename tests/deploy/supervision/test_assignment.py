from deploy.supervision.assignment import Seats
from transport.messages import Assignment


def test_seats_lie_side_by_side_and_share_one_ladder() -> None:
    seats = Seats(3, 4, 1000)
    assert [seats.take(index) for index in range(3)] == [Assignment(4 * i, 12, 1000 + 4 * i) for i in range(3)]


def test_a_new_life_of_an_actor_has_other_seeds() -> None:
    seats = Seats(2, 4, 0)
    first = seats.take(1)
    again = seats.take(1)
    assert (again.offset, again.environments) == (first.offset, first.environments) and again.first_seed == 8
    assert seats.next_seed == 12


def test_after_a_rescale_each_actor_hears_once() -> None:
    seats = Seats(2, 4, 0)
    assert seats.take(0) and seats.news(0) is None
    seats.renew(3)
    assert seats.news(0) == Assignment(0, 12, 8) and seats.news(0) is None
    assert seats.take(2) == Assignment(8, 12, 16) and seats.news(2) is None


def test_who_has_no_seat_hears_nothing() -> None:
    seats = Seats(3, 4, 0)
    seats.renew(1)
    assert seats.news(2) is None
