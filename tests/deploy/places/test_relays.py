"""The processes that serve a host's actors: started with the first folder, again whenever they end or hang, and shown."""

from __future__ import annotations

import pytest

from deploy.places.base import Exit
from deploy.places.remote.agent import FIRST_SECONDS, HANG_SECONDS, MOST_DELAY_SECONDS, SOUND_SECONDS
from deploy.supervision.service import hosted
from tests.deploy.places.far import Machine, World

LINE_SECONDS = 5.0  # the default of deploy.record_seconds


def relayed(places: int = 2) -> tuple[World, Machine]:
    world = World()
    world.servers = ("relay",)
    (machine,) = world.join(places)
    return world, machine


def work(world: World, machine: Machine, seconds: float) -> None:
    """Lets time pass in which the relay prints its line."""
    for _ in range(round(seconds / LINE_SECONDS)):
        world.run(LINE_SECONDS)
        machine.agent.line("relay-0", "policy v1 lag 0")


def test_a_relay_is_started_once_and_takes_no_place() -> None:
    world, machine = relayed()
    assert [world.begun(index).host for index in range(2)] == ["host-0", "host-0"]
    work(world, machine, 100)
    assert len(machine.relays) == 1 and machine.relays[0].ended is None and len(machine.alive) == 2
    (shown,) = world.places.servers()
    assert (shown["name"], shown["role"], shown["host"], shown["state"]) == ("relay-0", "relay", "host-0", "ready")
    assert (shown["pid"], shown["restarts"], shown["last_exit"], shown["rss_bytes"]) == (100, 0, None, 1000)
    assert "relay-0 | policy v1 lag 0" in world.lines, "its lines are in the run's log"


def test_a_relay_that_ends_again_and_again_is_started_after_at_most_four_seconds() -> None:
    world, machine = relayed()
    began = []
    for number in range(1, 8):
        machine.relays[-1].ended = Exit(2, "no such address")
        ended = world.now
        while len(machine.relays) == number:
            world.run(0.1)
        began.append(round(world.now - ended))
    assert began == [1, 2, 4, 4, 4, 4, 4] and MOST_DELAY_SECONDS == 4.0
    world.run(1)
    (shown,) = world.places.servers()
    assert shown["restarts"] == 7 and shown["last_exit"] == "exit 2: no such address"


def test_a_relay_that_cannot_be_started_is_tried_again_and_actors_go_on() -> None:
    world, machine = relayed()
    world.begun(0)
    work(world, machine, SOUND_SECONDS + LINE_SECONDS)
    machine.unable = True
    machine.relays[0].kill()
    world.run(3)
    (shown,) = world.places.servers()
    assert shown["state"] == "starting" and shown["pid"] is None and "could not be started" in shown["last_exit"]
    assert any("host-0 | relay-0 has ended (killed by SIGKILL)" in line for line in world.lines)
    machine.unable = False
    world.run(MOST_DELAY_SECONDS + 1)
    assert world.places.servers()[0]["state"] == "ready" and len(machine.alive) == 1


@pytest.mark.parametrize(("worked", "seconds"), [(60.0, HANG_SECONDS + 2 * LINE_SECONDS), (0.0, FIRST_SECONDS)])
def test_a_relay_that_prints_nothing_for_long_is_killed_and_started_again(worked: float, seconds: float) -> None:
    """Before its first line it may import torch and open a device."""
    world, machine = relayed()
    work(world, machine, worked)
    world.run(seconds - 3)
    assert len(machine.relays) == 1
    world.run(5)
    assert len(machine.relays) == 2 and machine.relays[0].ended == Exit(-9)
    assert any("relay-0 hangs" in line for line in world.lines)


def test_an_inference_process_is_kept_running_as_the_relay_is() -> None:
    world = World()
    world.servers = ("relay", "inference")
    (machine,) = world.join(1)
    world.run(SOUND_SECONDS + LINE_SECONDS)
    machine.agent.line("inference-0", "120 rows/s")
    machine.servers["inference"][0].kill()
    world.run(2)
    assert [len(machine.servers[role]) for role in ("relay", "inference")] == [1, 2]
    relay, inference = world.places.servers()
    assert (relay["name"], relay["restarts"]) == ("relay-0", 0)
    assert (inference["name"], inference["role"], inference["host"]) == ("inference-0", "inference", "host-0")
    assert (inference["state"], inference["restarts"], inference["last_exit"]) == ("ready", 1, "killed by SIGKILL")
    assert "inference-0 | 120 rows/s" in world.lines


def test_a_relay_ends_with_its_host_after_the_actors_and_is_not_started_again() -> None:
    world, machine = relayed()
    process = world.begun(0)
    machine.children[0].deaf = True
    machine.agent.leave("stopped by you")
    world.run(1)
    assert machine.relays[0].ended is None, "an actor still sends what it has"
    machine.children[0].ended = Exit(0)
    world.run(1)
    assert machine.agent.over and process.poll() is not None
    assert len(machine.relays) == 1 and machine.relays[0].ended is not None


def test_a_new_supervisor_expects_no_relay() -> None:
    world, _ = relayed()
    actor = {"name": "actor-3", "host": "host-0"}
    assert hosted({"state": "running", "processes": [actor, *world.places.servers()]}) == {"actor-3": "host-0"}
    without = World()
    (machine,) = without.join(1)
    without.run(10)
    assert not machine.relays and without.places.servers() == []
