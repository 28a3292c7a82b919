"""Which process was killed for lack of memory, and how much each one uses."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from deploy.children import child_environment
from deploy.places import local, memory
from deploy.places.base import Exit
from deploy.places.child import Child
from deploy.places.local import LocalPlace
from deploy.places.memory import OutOfMemoryWatch, oom_counter, oom_kills, resident_bytes
from deploy.process_spec import ProcessSpec
from tests.harness.waiting import wait_until
from transport import cgroups

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the kernel's own files")


class World:
    """A counter, and a clock."""

    def __init__(self, folder: Path) -> None:
        self.now, self.counter = 0.0, folder / "memory.events"
        self.write(7)

    def write(self, kills: int) -> None:
        self.counter.write_text(f"low 0\noom 9\noom_kill {kills}\n")

    def clock(self) -> float:
        return self.now


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    made = World(tmp_path)
    monkeypatch.setattr(memory, "oom_counter", lambda pid: made.counter)
    return made


def test_only_a_count_that_rose_a_moment_ago_speaks_against_the_kernel(world: World) -> None:
    watch = OutOfMemoryWatch(1, world.clock)
    watch.look(at_once=True)
    assert not watch.lately
    world.write(8)
    world.now = 2
    watch.look()
    assert watch.lately
    world.now = 60
    watch.look()
    assert not watch.lately


def test_the_count_is_read_once_a_second_and_that_of_a_former_group_goes_on_to_count(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    watch = OutOfMemoryWatch(1, world.clock)
    world.write(8)
    watch.look()
    assert not watch.lately
    monkeypatch.setattr(memory, "oom_counter", lambda pid: tmp_path / "nothing")  # a dying process is in no group any more
    world.now = 1
    watch.look()
    assert watch.lately


def group_of(controllers: str) -> str | None:
    """This process's group of a hierarchy."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    return next((path for _, found, path in lines if controllers in found.split(",")), None)


@pytest.mark.parametrize(("version", "controllers"), [(1, "memory"), (2, "")])
def test_the_counter_is_that_of_the_processs_own_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int, controllers: str
) -> None:
    group = group_of(controllers)
    if group is None:
        pytest.skip("no such hierarchy here")
    monkeypatch.setattr(cgroups, "_mounts", lambda controller: ((version, b"/", os.fsencode(tmp_path)),))
    counter = tmp_path / group.lstrip("/") / memory.COUNTERS[version]
    assert oom_counter(os.getpid()) == memory.VMSTAT, "there is no counter"
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom_kill 3\n")
    assert oom_counter(os.getpid()) == counter and oom_kills(counter) == 3
    monkeypatch.setattr(cgroups, "_mounts", lambda controller: ((version, b"/elsewhere", os.fsencode(tmp_path)),))
    assert oom_counter(os.getpid()) == memory.VMSTAT


def test_resident_memory_is_that_of_all_processes_that_are_named() -> None:
    one = resident_bytes([os.getpid()])
    assert one > 10_000_000 and resident_bytes([os.getpid(), os.getpid(), 2**22 + 1]) == pytest.approx(2 * one, rel=0.05)


def ended(child: Child) -> Exit:
    wait_until(lambda: child.poll() is not None, what="its end")
    found = child.poll()
    assert found is not None
    return found


@pytest.mark.parametrize("rose", [False, True])
def test_only_a_kill_that_we_did_not_send_may_be_the_kernels(world: World, rose: bool) -> None:
    def sleeper() -> Child:
        return Child("child", ["sleep", "60"], child_environment(), lambda name, line: None)

    struck, ours = sleeper(), sleeper()
    if rose:
        world.write(8)
    os.kill(struck.pid, 9)
    ours.kill()
    assert ended(struck).reason == ("out of memory: killed by the kernel" if rose else "killed by SIGKILL")
    assert ended(ours).reason == "killed by SIGKILL"


@pytest.mark.parametrize(("role", "share"), [("actor", 300), ("evaluator", 300), ("replay", 0), ("learner", 0)])
def test_a_process_that_simulates_is_the_kernels_first_choice(
    role: str, share: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(local, "python_command", lambda *arguments, python: ["sleep", "60"])
    before = int(Path("/proc/self/oom_score_adj").read_text())
    place = LocalPlace(lambda name, line: None)
    child = place.begin(ProcessSpec("one", role, "module", ()), None)
    try:
        found = int(Path(f"/proc/{child.pid}/oom_score_adj").read_text())
        assert found == (share or before)
    finally:
        child.kill()
        ended(child)
        place.close()
