"""Hosts: who gets which actor, what becomes of the actors of a host that is silent, and who adopts whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from deploy.places.base import Exit
from deploy.places.local import LocalOrHost
from deploy.places.remote import hosts
from deploy.process_spec import ProcessSpec
from tests.deploy.places.far import ASSIGNMENT, PARTS, FakeChild, World, spec_of
from transport.messages.control import Stop
from transport.messages.fields import PROTOCOL
from transport.messages.hosts import Begin, Enrol, Enrolled, HostHello
from transport.messages.replay import Refused


def test_actors_go_to_the_emptiest_host_and_none_begins_where_there_is_no_room() -> None:
    world = World()
    assert world.begin(0) is None, "nobody has joined yet"
    world.join(1, 3)
    where = [world.begun(index).host for index in range(4)]
    assert where[:2] == ["host-1", "host-1"] and sorted(where) == ["host-0", "host-1", "host-1", "host-1"]
    assert world.begin(4) is None and world.begin(4) is None
    assert [len(machine.alive) for machine in world.machines.values()] == [1, 3]


def test_an_actor_has_a_key_of_its_own_for_each_incarnation_which_is_refused_once_it_has_ended() -> None:
    world = World()
    world.join(1)
    world.keys.admit("actor-0", "the key of the process that had the name before")
    process = world.begin(0)
    assert process is not None and "actor-0" not in world.keys.listed, "refused before another one has the name"
    world.run(0.5)
    first = world.keys.listed["actor-0"]
    assert first == process.public
    process.kill()
    world.run(0.5)
    assert process.poll() is not None and "actor-0" not in world.keys.listed
    assert world.begun(0).public == world.keys.listed["actor-0"] != first


def test_an_actor_whose_former_key_cannot_be_refused_is_not_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(names: Sequence[str]) -> None:
        raise OSError("the disk is full")

    world = World()
    (machine,) = world.join(1)
    with monkeypatch.context() as full:
        full.setattr(world.keys, "refuse", refuse)
        with pytest.raises(OSError, match="the disk is full"):
            world.begin(0)
    world.run(2)
    assert not machine.children, "the supervisor knows of no such process, so nothing would end it"
    assert world.begun(0).host == "host-0"


@pytest.mark.parametrize("silence", ["cut", "stopped"])
def test_actors_of_a_host_that_is_silent_go_with_it_and_are_fenced(silence: str) -> None:
    world = World()
    first, second = world.join(2, 2)
    lost = world.begun(0)
    assert lost.host == "host-0"
    setattr(first, silence, True)
    world.run(5)
    assert lost.poll() is None and lost.away, "its own silence says nothing now"
    world.run(2)
    ended = lost.poll()
    assert ended is not None and "has not been heard for 6 s" in ended.with_host
    assert "actor-0" not in world.keys.listed, "refused before it begins elsewhere"
    again = world.begun(0)
    assert again.host == "host-1" and first.alive == [lost.incarnation]
    setattr(first, silence, False)
    world.run(2.5)
    assert not first.alive, "it is told that its actor was given up"
    assert world.keys.listed["actor-0"] == again.public
    assert world.places.hosts["host-0"].free == 2


def test_neither_a_short_silence_nor_the_supervisors_own_delay_changes_anything() -> None:
    world = World()
    (machine,) = world.join(2)
    process = world.begun(0)
    machine.cut = True
    world.run(4)
    machine.cut = False
    world.run(2)
    assert process.poll() is None and process.away, "it may need a moment to connect again"
    world.run(5)
    assert not process.away and machine.alive == [process.incarnation]
    world.now += 60
    world.run(3)
    assert process.poll() is None


def test_orders_that_are_lost_are_repeated_and_carried_out_once() -> None:
    world = World()
    (machine,) = world.join(1)
    machine.cut = True
    process = world.begin(0)
    assert process is not None
    world.run(2)
    assert not machine.children
    machine.cut = False
    order = process.order
    assert order is not None
    machine.inbox.extend([(order, []), (order, [])])
    world.run(2)
    assert machine.alive == [process.incarnation] and len(machine.children) == 1
    machine.cut = True
    process.kill()
    world.run(1)
    assert machine.alive
    machine.cut = False
    world.run(2)
    assert not machine.alive and process.poll() is not None


def test_a_host_takes_no_more_than_its_places_and_nothing_before_it_has_the_folder() -> None:
    world = World()
    (machine,) = world.join(1)
    orders = [Begin("actor", index, index + 1, 1, ASSIGNMENT) for index in range(3)]
    machine.inbox.extend((order, []) for order in orders)
    machine.agent.turn()
    assert len(machine.children) == 1
    world.places._parts = None  # no address of a server is known
    world.places._next_folder = float("inf")
    (other,) = world.join(1)
    other.inbox.append((orders[0], []))
    other.agent.turn()
    assert not other.children and world.places.hosts["host-1"].free == 0


def test_why_an_actor_has_ended_arrives_and_its_place_is_free_then() -> None:
    world = World()
    (machine,) = world.join(2)
    first, second = world.begin(0), world.begin(1)
    assert first is not None and second is not None and world.begin(2) is None, "a place is taken from the order on"
    world.run(0.5)
    machine.children[0].ended = Exit(3, "no such level", explained=True)
    world.run(0.5)
    assert first.poll() == Exit(3, "no such level", explained=True)
    machine.unable = True
    third = world.begin(2)
    world.run(1)
    ended = third.poll() if third else None
    assert ended is not None and ended.reason == "exit 1: it could not be started: no more processes"
    hello = machine.agent._hello()
    world.places.hello(msgspec.structs.replace(hello, incarnation=hello.incarnation + 1, running=()))
    lost = second.poll()
    assert lost is not None and lost.with_host == "its host host-0 was started again"


@pytest.mark.parametrize("deaf", [False, True])
def test_actors_leave_with_a_host_that_is_stopped_and_are_told_how_long_its_agent_waits_for_them(deaf: bool) -> None:
    world = World()
    machine, _ = world.join(2, 2)
    processes = [world.begun(index) for index in range(4)]
    for child in machine.children:
        child.deaf = deaf
    here = [process for process in processes if process.host == "host-0"]
    machine.agent.leave("stopped by you")
    world.run(5)
    assert bool(machine.alive) == deaf and len(here) == 2
    told = [(process.name, Stop("its host host-0 leaves", 7.0)) for process in here]
    assert world.told == (told if deaf else world.told), "once"
    world.run(5)
    assert machine.agent.over and machine.agent.exit_status == 0 and not machine.alive
    assert {process.poll() for process in here} == {Exit(0, with_host="its host host-0 leaves")}
    assert list(world.places.hosts) == ["host-1"]
    world.places.close()
    world.run(1)
    other = world.machines["host-1"].agent
    assert other.over and other.exit_status == 0 and other.reason == "the run has ended"


def test_an_agent_without_a_supervisor_ends_its_actors_after_orphan_seconds() -> None:
    world = World()
    (machine,) = world.join(2)
    world.begun(0)
    machine.cut = True
    world.run(295)
    assert machine.alive and not machine.agent.leaving
    world.run(10)
    assert not machine.alive and machine.agent.over and machine.agent.exit_status == 1
    assert "deploy.orphan_seconds" in machine.agent.reason


def test_a_new_supervisor_waits_for_the_hosts_of_the_one_before_and_adopts_their_actors() -> None:
    world = World()
    (machine,) = world.join(3)
    before = [world.begun(index).incarnation for index in range(2)]
    machine.cut = True
    world.supervise({"actor-0": "host-0", "actor-1": "host-0", "actor-2": "host-9"})
    world.run(3)
    assert world.begin(0) is None and world.places.expects("actor-0")
    machine.cut = False
    world.run(1.5)
    adopted = [world.begin(index) for index in range(2)]
    assert [process.incarnation for process in adopted if process] == before and all(each.adopted for each in adopted if each)
    assert len(machine.children) == 2 and machine.alive == before
    assert world.begin(2) is None, "its host may still come"
    world.run(10)
    assert world.begun(2).host == "host-0", "it did not"
    world.run(40)
    assert len(machine.alive) == 3


def test_what_no_supervisor_wants_any_more_is_ended() -> None:
    world = World()
    (machine,) = world.join(2)
    wanted, unwanted = world.begun(0), world.begun(1)
    world.supervise({"actor-0": "host-0", "actor-1": "host-0"})
    world.run(2)
    adopted = world.begin(0)
    assert adopted is not None and adopted.incarnation == wanted.incarnation
    world.run(hosts.UNWANTED_SECONDS + 1)
    assert machine.alive == [wanted.incarnation] and unwanted.incarnation not in machine.alive


@pytest.mark.parametrize("change", ["key", "settings", "run"])
def test_only_an_actor_of_the_same_run_with_the_same_settings_and_a_key_on_the_list_is_adopted(change: str) -> None:
    world = World()
    (machine,) = world.join(2)
    process = world.begun(0)
    world.supervise({} if change == "run" else {"actor-0": "host-0"})
    if change == "key":
        world.keys.admit("actor-0", "x" * 40)  # it was started anew elsewhere
    world.settings = "others" if change == "settings" else world.settings
    world.run(2)
    assert not machine.alive
    again = world.begun(0)
    assert not again.adopted and again.incarnation != process.incarnation


def test_an_actor_is_asked_to_end_once_however_often_the_order_comes() -> None:
    world = World()
    (machine,) = world.join(1)
    process, asked = world.begun(0), list[str]()
    machine.children[0].ask = lambda: asked.append("asked")  # type: ignore[method-assign]
    process.ask()
    world.run(3)
    machine.agent.leave("stopped by you")
    world.run(1)
    assert asked == ["asked"] and machine.alive


def test_a_ticket_admits_its_own_host_and_a_host_of_another_version_is_refused() -> None:
    world = World()
    answer = world.places.enrol("ticket-3", Enrol(PROTOCOL, "k" * 40))
    assert answer == Enrolled("host-3") and world.keys.listed == {"host-3": "k" * 40}
    assert isinstance(world.places.enrol("ticket-3", Enrol(PROTOCOL - 1, "z" * 40)), Refused)
    refused = world.places.hello(HostHello("host-3", 1, PROTOCOL + 1, 1, "", ()))
    assert isinstance(refused, Refused) and "install the same version" in refused.reason
    assert world.keys.listed == {"host-3": "k" * 40} and not world.places.hosts


def enrolled(world: World, public: str, ticket: str = "ticket-shared-3") -> str:
    """The name that a shared ticket gives; empty where there is no answer."""
    answer = world.places.enrol(ticket, Enrol(PROTOCOL, public * 40))
    assert answer is None or isinstance(answer, Enrolled), answer
    return answer.name if answer else ""


def test_a_shared_ticket_gives_each_host_a_name_of_its_own_and_none_that_is_in_use() -> None:
    world = World()
    world.keys.admit("ticket-1", "t" * 40)  # host-1 has a ticket of its own
    world.join(1)
    world.keys.admit("host-0", "a" * 40)
    assert [enrolled(world, letter) for letter in "bba"] == ["host-2", "host-2", "host-0"], "asked again, told the same"
    assert enrolled(world, "c") == "", "host-0 is there, and host-2 may say so in a moment"
    world.run(hosts.ADOPT_SECONDS)
    assert [enrolled(world, letter) for letter in "cd"] == ["host-2", ""], "host-2 was never heard; now it is to be again"
    world.run(hosts.FULL_SECONDS)
    assert world.machines["host-0"].agent.name in world.places.hosts
    assert (enrolled(world, "d"), world.keys.listed["host-0"]) == ("host-2", "a" * 40)


def test_a_shared_ticket_gives_the_name_of_a_host_that_has_gone_and_refuses_one_host_too_many() -> None:
    world = World()
    first, second = world.join(1, 1)
    for name in ("host-0", "host-1"):
        world.keys.admit(name, name[-1] * 40)
    world.run(hosts.ADOPT_SECONDS)
    assert enrolled(world, "c", "ticket-shared-2") == ""
    second.cut = True
    world.run(7)
    assert enrolled(world, "c", "ticket-shared-2") == "host-1" and world.keys.listed == {"host-0": "0" * 40, "host-1": "c" * 40}
    second.cut = False
    world.run(1)
    assert enrolled(world, "d", "ticket-shared-2") == ""
    world.run(hosts.FULL_SECONDS)
    answer = world.places.enrol("ticket-shared-2", Enrol(PROTOCOL, "d" * 40))
    assert isinstance(answer, Refused) and "is for 2 hosts, and as many are there" in answer.reason
    assert first.agent.name in world.places.hosts


def test_a_new_supervisor_leaves_the_names_to_the_hosts_of_the_one_before() -> None:
    world = World()
    world.keys.admit("host-0", "0" * 40)
    world.supervise()
    assert enrolled(world, "c", "ticket-shared-1") == ""
    assert enrolled(world, "0", "ticket-shared-1") == "host-0", "but for the host that has the key"
    world.supervise()
    world.run(hosts.ADOPT_SECONDS + 0.1)
    assert enrolled(world, "c", "ticket-shared-1") == "host-0"


def test_a_host_puts_lines_of_its_own_actors_into_the_log_and_of_no_others() -> None:
    world = World()
    (machine,) = world.join(1)
    world.begun(0)
    for name in ("actor-0", "host-0", "learner", "actor-1"):
        machine.agent.line(name, f"\x1b[31mI am {name}")
    world.run(0.5)
    assert [line for line in world.lines if "I am" in line] == ["actor-0 | I am actor-0", "host-0 | I am host-0"]


def test_a_changed_folder_is_sent_again() -> None:
    world = World()
    (machine,) = world.join(1)
    assert machine.agent._folder.digest == PARTS.folder.digest
    changed = PARTS._replace(folder=msgspec.structs.replace(PARTS.folder, digest="other"))
    world.places._context = world.places._context._replace(folder=lambda: changed)
    world.run(3)
    assert machine.agent._folder.digest == "other"


class Here:
    """This machine as a place."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.children: list[FakeChild] = []

    def begin(self, spec: ProcessSpec, assignment: Any) -> FakeChild:
        self.begun.append(spec.name)
        self.children.append(FakeChild(1))
        return self.children[-1]

    def turn(self) -> None: ...

    def close(self) -> None: ...


def test_actors_go_to_hosts_first_then_here_up_to_local_actors_and_the_others_wait() -> None:
    world, here, reclaimed = World(), Here(), list[str]()
    place = LocalOrHost(here, world.places, 2, reclaimed.append)
    assert all(place.begin(spec_of(index), ASSIGNMENT) for index in range(2))
    assert place.begin(spec_of(2), ASSIGNMENT) is None
    assert place.begin(ProcessSpec("learner", "learner", "learner", ()), None) is not None, "the limit is that of actors"
    world.join(1)
    found = place.begin(spec_of(2), ASSIGNMENT)
    assert found is not None and found.host == "host-0"
    assert place.begin(spec_of(3), ASSIGNMENT) is None
    here.children[0].kill()
    assert place.begin(spec_of(3), ASSIGNMENT) is not None
    assert here.begun == ["actor-0", "actor-1", "learner", "actor-3"] and reclaimed == ["actor-0", "actor-1", "actor-3"]


def test_an_actor_that_a_host_may_still_have_is_not_begun_here() -> None:
    world, here = World(), Here()
    world.supervise({"actor-0": "host-0"})
    place = LocalOrHost(here, world.places, 8, lambda name: None)
    assert place.begin(spec_of(0), ASSIGNMENT) is None and place.begin(spec_of(1), ASSIGNMENT) is not None
    world.run(hosts.ADOPT_SECONDS + 1)
    assert place.begin(spec_of(0), ASSIGNMENT) is not None
