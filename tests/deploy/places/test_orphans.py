"""Every process that a process has started ends with it, in any group or session."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from deploy.children import child_environment
from deploy.places import reaper
from deploy.places.child import Child
from deploy.places.orphans import Orphans, children
from tests.harness.waiting import gone, wait_until

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
SERVER = "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session={apart}{more}).pid, flush=True)"


class Family:
    """A process with a server, which is `apart` in a session of its own."""

    def __init__(self, orphans: Orphans, more: str = "", apart: bool = True) -> None:
        self.mark, self.lines = orphans.mark(), list[str]()
        code = SERVER.format(more=more, apart=apart) + "; import time; time.sleep(600)"
        environment = child_environment(**{reaper.MARK_VARIABLE: self.mark})
        self.child = Child("child", [sys.executable, "-S", "-c", code], environment, lambda name, line: self.lines.append(line))
        orphans.began(self.child.pid, self.mark)
        wait_until(lambda: bool(self.lines), what="the server")
        self.server = int(self.lines[0])

    def die(self) -> None:
        self.child.kill()
        wait_until(lambda: self.child.poll() is not None, what="its end")


@pytest.fixture
def orphans() -> Iterator[Orphans]:
    made = Orphans()
    yield made
    made.close()


def test_what_a_dead_process_has_left_is_ended_and_nothing_of_the_others(orphans: Orphans) -> None:
    dead, alive = Family(orphans), Family(orphans)
    dead.die()
    assert not gone(dead.server), "its own session kept it out of the group"
    orphans.tend([alive.child.pid])
    wait_until(lambda: gone(dead.server), what="the end of the server")
    assert not gone(alive.server)
    assert {pid: set(found) for pid, found in orphans.members().items()} == {alive.child.pid: {alive.child.pid, alive.server}}
    alive.die()
    orphans.close()
    wait_until(lambda: gone(alive.server), what="the end of the other")


def test_a_group_is_ended_after_its_leader_where_no_system_call_looks_at_a_process_without_reaping_it(
    orphans: Orphans, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "waitid")  # as on macOS before Python 3.13
    monkeypatch.setattr(reaper, "kill_families", lambda *given, **options: None)  # which needs /proc
    dead = Family(orphans, apart=False)
    os.kill(dead.child.pid, signal.SIGKILL)
    wait_until(lambda: dead.child.poll() is not None, what="its end")
    assert not gone(dead.server)
    orphans.tend([])
    wait_until(lambda: gone(dead.server), what="the end of the server")


def test_the_reaper_ends_groups_and_families_when_the_pipe_ends(orphans: Orphans) -> None:
    family = Family(orphans)
    orphans.tend([family.child.pid])
    standing_by = orphans._reaper
    assert standing_by is not None and standing_by.stdin is not None
    assert psutil.Process(standing_by.pid).memory_info().rss < 20_000_000
    standing_by.stdin.close()
    assert standing_by.wait(60) == 0
    wait_until(lambda: family.child.poll() is not None and gone(family.server), what="the end of all")


def test_a_reaper_that_died_is_replaced_and_the_next_one_knows_all(orphans: Orphans) -> None:
    family = Family(orphans)
    orphans.tend([family.child.pid])
    first = orphans._reaper
    assert first is not None
    first.kill()
    first.wait()
    orphans.tend([family.child.pid])
    second = orphans._reaper
    assert second is not None and second.pid != first.pid and second.stdin is not None
    second.stdin.close()
    second.wait(60)
    wait_until(lambda: family.child.poll() is not None, what="the end of the group")


SUPERVISOR = """
import subprocess, sys, time
from deploy.places.orphans import Orphans
orphans = Orphans()
orphans.adopt()
quiet = {"env": {}, "stdout": subprocess.PIPE, "text": True}
shell = subprocess.run(["sh", "-c", "setsid sleep 600 >/dev/null & echo $!"], **quiet)  # its parent is unknown
time.sleep(0.1)
orphans.tend([])
print(shell.stdout.strip(), flush=True)
input()
orphans.close()
"""


def test_an_orphan_without_a_mark_is_adopted_and_ended_at_the_end() -> None:
    host = subprocess.Popen(
        [sys.executable, "-c", SUPERVISOR], env=child_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert host.stdin is not None and host.stdout is not None
    with host:
        orphan = int(host.stdout.readline())
        assert psutil.Process(orphan).ppid() == host.pid
        host.stdin.write("\n")
        host.stdin.flush()
        assert host.wait(60) == 0
        wait_until(lambda: gone(orphan), what="the orphan's end")


BESIDE = """
import os, subprocess
from deploy.places.orphans import Orphans, children
page = subprocess.Popen(["true"])
os.waitid(os.P_PID, page.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and is not reaped
orphans = Orphans()
orphans.adopt()
shell = subprocess.run(["sh", "-c", "setsid true >/dev/null & echo $!"], stdout=subprocess.PIPE, text=True)
while int(shell.stdout) in children():
    orphans.tend([])
print(page.wait())
orphans.close()
"""


def test_orphans_are_reaped_although_another_child_that_has_ended_is_not() -> None:
    """The page of `up --web` is reaped at the end of the run."""
    host = subprocess.run([sys.executable, "-c", BESIDE], env=child_environment(), capture_output=True, text=True, timeout=60)
    assert host.stdout == "0\n" and not host.stderr


def test_only_whole_marks_count(tmp_path: Path) -> None:
    own = secrets.token_hex(8)  # the marks of all processes of this machine are looked at
    marks = [f"{own}:1", f"{own}:12", f"{own}b:1"]
    sleepers = [subprocess.Popen(["sleep", "600"], env=os.environ | {reaper.MARK_VARIABLE: mark}) for mark in marks]
    try:
        wait_until(lambda: {*reaper.families(f"{own}:")} == {*marks[:2]}, what="both are found")
        assert {sleeper.pid for sleeper in sleepers} <= children()
        assert reaper.kill_families(f"{own}:", spared=[marks[1]]) == 1
        assert sleepers[0].wait(60) == -9 and [sleeper.poll() for sleeper in sleepers[1:]] == [None, None]
    finally:
        for sleeper in sleepers:
            sleeper.kill()
            sleeper.wait()


def test_a_process_of_any_name_is_found() -> None:
    """Every account can give a process of its own such a name, and the kernel cuts long names in the middle of a letter."""
    code = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a) \\xff', 0, 0, 0); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as odd:
        assert odd.stdin is not None and odd.stdout is not None and odd.stdout.readline()
        assert odd.pid in children()
        odd.stdin.close()
