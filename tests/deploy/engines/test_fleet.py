"""The hosts that an engine starts: as many as are wanted, replaced when they are gone, sent home when they are too many."""

from __future__ import annotations

from deploy.engines import fleet
from deploy.engines.fleet import Waiting
from tests.deploy.engines.clusters import Lent
from tests.deploy.places.far import ASSIGNMENT, spec_of


def test_hosts_have_the_wanted_places_together_and_the_last_one_has_the_rest() -> None:
    world = Lent(room=100)
    world.fleet.want(10)
    world.wait(3)
    assert world.sizes == {"host-0": 4, "host-1": 4, "host-2": 2}
    world.wait(30)
    assert len(world.cluster.started) == 3, "nothing more is asked for"
    world.fleet.want(9)
    world.wait(3)
    assert len(world.sizes) == 3, "a host with more places than are too many stays"


def test_more_places_are_more_hosts_and_fewer_places_send_the_empty_ones_home() -> None:
    world = Lent(room=100)
    world.fleet.want(2)
    world.wait(2)
    world.work(2)
    world.fleet.want(4)
    world.wait(2)
    assert world.sizes == {"host-0": 2, "host-1": 2}
    world.fleet.want(2)
    world.wait(3)
    assert world.sizes == {"host-0": 2} and not world.cluster.ended, "it ends by itself"
    assert list(world.cluster.running) == [host for host in world.cluster.started if host.startswith("host-0.")]
    world.fleet.want(0)
    world.wait(3)
    assert world.sizes == {"host-0": 2}, "its actors have no room elsewhere"


def test_a_host_with_actors_goes_home_once_others_have_room_for_them_and_that_is_no_failure_of_theirs() -> None:
    world = Lent(room=100, places_per_host=2)
    world.fleet.want(4)
    world.wait(2)
    world.work(4)
    processes = [process for host in world.places.hosts.values() for process in host.processes.values()]
    world.fleet.want(2)
    world.wait(3)
    assert len(world.sizes) == 2, "four actors work"
    first = [next(process for process in processes if process.host == name) for name in ("host-0", "host-1")]
    for process in first:
        process.kill()
    world.wait(3)
    assert world.sizes == {"host-0": 2}, "of two with one actor each the later one goes"
    (moved,) = (process for process in processes if process.host == "host-1" and process not in first)
    assert moved.ended is not None and "leaves" in moved.ended.with_host


def test_a_host_that_was_sent_home_gets_no_actor_and_the_word_is_repeated_until_it_leaves() -> None:
    world = Lent(room=100)
    world.fleet.want(8)
    world.wait(2)
    world.machines["host-1"].cut = True
    world.fleet.want(4)
    world.wait(1)
    assert world.places.joined()["host-1"].free == 0
    world.machines["host-1"].cut = False
    world.wait(3)
    assert world.sizes == {"host-0": 4} and not world.cluster.ended


def test_many_hosts_that_wait_are_one_line_and_are_in_the_status_until_they_join() -> None:
    world = Lent(room=8)
    world.fleet.want(80)
    world.wait(3)
    asked = list(world.cluster.asked)
    for first in range(0, len(asked), 5):  # a cluster says it over several turns
        world.cluster.news += [Waiting(host, "each asks for 4 CPUs; 0 of 8 are free") for host in asked[first : first + 5]]
        world.wait(0.1)
    world.wait(3)
    (said,) = [line for line in world.lines if "wait for a machine" in line]
    assert said.startswith("supervisor | host-2, host-3, ") and "host-11 and 8 more wait for a machine: each asks for" in said
    states = [(host["name"], host["state"], host["places"]) for host in world.places.figures()]
    assert states[:3] == [("host-0", "joined", 4), ("host-1", "joined", 4), ("host-2", "waiting", 4)] and len(states) == 20
    world.wait(30)
    assert len(world.cluster.started) == 20 and not any("another" in line for line in world.lines)
    world.fleet.want(76)
    world.wait(1)
    assert [host[:7] for host in world.cluster.ended] == ["host-19"], "what waits is taken back before a host goes home"
    world.cluster.room = 80
    world.wait(5)
    assert {host["state"] for host in world.places.figures()} == {"joined"}


def test_a_host_that_died_is_replaced_at_once_and_its_actors_go_with_it() -> None:
    world = Lent(room=4)
    world.fleet.want(4)
    world.wait(2)
    process = world.places.begin(spec_of(0), ASSIGNMENT)
    world.wait(1)
    world.listed.admit("host-0", "the key of the host that died")
    world.cluster.kill("host-0")
    world.wait(0.1)
    assert process is not None and process.ended is not None and process.ended.with_host == "its host host-0 has ended"
    assert "host-0" not in world.listed.listed, "refused, should it still run"
    world.wait(2)
    assert world.sizes == {"host-0": 4} and len(world.cluster.started) == 2
    assert "supervisor | host-0: its worker process has died; another one is started" in world.lines


def test_a_host_that_is_silent_is_replaced_although_the_cluster_does_not_notice() -> None:
    world = Lent(room=100)
    world.fleet.want(4)
    world.wait(2)
    before = world.machines["host-0"]
    before.cut = True
    world.wait(9)
    assert world.machines["host-0"] is not before and world.sizes == {"host-0": 4}
    assert world.cluster.ended == world.cluster.started[:1]


def test_a_host_that_cannot_reach_the_run_is_started_again_and_the_log_says_what_it_may_be() -> None:
    world = Lent(room=100)
    world.cluster.mute = True
    world.fleet.want(4)
    world.wait(fleet.JOIN_SECONDS + 2)
    assert len(world.cluster.started) == 2 and len(world.cluster.ended) == 1
    assert any("it has not joined for 90 s: can it reach tcp://trunk:1? (--deploy.bind)" in line for line in world.lines)


def test_hosts_that_fail_again_and_again_are_started_more_and_more_rarely() -> None:
    world = Lent(room=100)
    world.cluster.broken = True
    world.fleet.want(4)
    world.wait(20)
    assert len(world.cluster.started) == 6, "at once, then after 1, 2, 4 and 8 s"
    world.cluster.broken = False
    world.wait(20)
    assert world.sizes == {"host-0": 4}
    of_days = Lent(room=100)
    of_days.cluster.broken = True
    of_days.fleet.want(4)
    of_days.wait(1)
    of_days.fleet.members["host-0"].failures = 2_000
    of_days.wait(5)
    assert any("another one is started in 60 s" in line for line in of_days.lines)


def test_hosts_of_a_supervisor_that_was_killed_are_kept() -> None:
    world = Lent(room=100, found=("host-0.4.aa", "host-1.4.bb"))
    world.join(4, 4)
    world.fleet.want(8)
    world.wait(20)
    assert not world.cluster.started and not world.cluster.ended and len(world.sizes) == 2


def test_a_cluster_that_answers_again_without_a_host_gets_another_one() -> None:
    world = Lent(room=100)
    world.fleet.want(8)
    world.wait(2)
    left, gone = list(world.cluster.running)
    world.cluster.running.pop(gone).stopped = True
    world.cluster.news.append(fleet.Connected((left,)))
    world.wait(3)
    assert len(world.cluster.started) == 3 and world.sizes == {"host-0": 4, "host-1": 4}
    world.cluster.news.append(fleet.Connected((*world.cluster.running, gone)))
    world.wait(1)
    assert gone in world.cluster.ended, "it was replaced, so the old one is ended"


def test_while_the_cluster_cannot_be_asked_no_host_is_asked_for_so_none_is_started_twice() -> None:
    world = Lent(room=100)
    answers, world.cluster.news = world.cluster.news, []
    world.fleet.want(4)
    world.wait(5)
    assert not world.cluster.started, "before the cluster answers"
    world.cluster.news += answers
    world.wait(2)
    world.cluster.news.append(fleet.Disconnected())
    world.fleet.want(8)
    world.wait(5)
    assert len(world.cluster.started) == 1 and world.sizes == {"host-0": 4}
    world.cluster.news.append(fleet.Connected(tuple(world.cluster.running)))
    world.wait(2)
    assert len(world.cluster.started) == 2 and world.sizes == {"host-0": 4, "host-1": 4}


def test_a_host_that_does_not_go_home_is_ended_once_the_cluster_can_be_asked() -> None:
    world = Lent(room=100)
    world.fleet.want(8)
    world.wait(2)
    world.machines["host-1"].cut = True
    world.fleet.want(4)
    world.wait(1)
    world.cluster.news.append(fleet.Disconnected())
    world.wait(fleet.LEAVE_SECONDS + 5)
    assert not world.cluster.ended
    world.cluster.news.append(fleet.Connected(tuple(world.cluster.running)))
    world.wait(1)
    assert [host[:7] for host in world.cluster.ended] == ["host-1."] and len(world.cluster.started) == 2


def test_a_ticket_that_cannot_be_made_is_said_and_tried_again_later() -> None:
    world = Lent(room=100)

    def fail(host: str) -> str:
        raise OSError("no space left")

    world.fleet._context = world.fleet._context._replace(ticket=fail)
    world.fleet.want(4)
    world.wait(30)
    assert not world.cluster.started
    assert [line for line in world.lines if "alarm" in line] == [
        "supervisor | alarm: no ticket could be made for host-0: no space left"
    ]


def test_the_end_closes_the_cluster() -> None:
    world = Lent(room=4)
    world.fleet.want(8)
    world.wait(2)
    world.fleet.close()
    assert world.cluster.closed and not world.fleet.members
