"""A run is held to its budget of cores: by arithmetic over made-up time, and real processes that would use more."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from math import ceil

import psutil
import pytest

from deploy.places import throttle
from deploy.places.throttle import LOOK_SECONDS, SAVED_SECONDS, CoreBudget, Throttle
from tests.harness.waiting import gone, wait_until

FORKS = "import os; os.fork(); print(flush=True)\nwhile True: pass"  # two processes that never rest


def used(budget: float, demand: float, seconds: float, late: float = 0.0, other: float = 0.0) -> float:
    """The cores that processes use in the mean that would use `demand` of them. Each look comes `late`; `other` cores are used by
    what is never stopped."""
    now, total = 0.0, 0.0
    held = CoreBudget(budget, now, total)
    while now < seconds:
        now, total = now + LOOK_SECONDS + late, total + (LOOK_SECONDS + late) * (demand + other)
        rest = held.rest_seconds(now, total)
        now, total = now + rest, total + rest * other
    return total / now


@pytest.mark.parametrize("budget", [0.1, 0.6, 1.0, 1.5, 7.3])
@pytest.mark.parametrize("late", [0.0, 0.2])
def test_what_would_use_more_uses_its_budget_however_late_the_looks_come(budget: float, late: float) -> None:
    assert used(budget, demand=ceil(budget), seconds=1000.0, late=late) == pytest.approx(budget, rel=0.01)
    assert used(budget, demand=ceil(budget), seconds=1000.0, late=late, other=0.05) == pytest.approx(budget, rel=0.01)


def test_what_uses_less_never_rests_and_saves_little_up() -> None:
    assert used(1.5, demand=1.0, seconds=100.0) == pytest.approx(1.0)
    held = CoreBudget(0.5, 0.0, 0.0)
    assert held.rest_seconds(1000.0, 0.0) == 0.0
    assert held.rest_seconds(1000.0, SAVED_SECONDS * 0.5) == 0.0, "it may catch up"
    assert held.rest_seconds(1000.0, SAVED_SECONDS * 0.5 + 1.0) == pytest.approx(2.0), "but with no more than that"


@pytest.fixture
def busy() -> Iterator[psutil.Process]:
    child = subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, start_new_session=True)
    assert child.stdout is not None
    child.stdout.readline()
    process = psutil.Process(child.pid)
    family = [process, *process.children()]
    yield process
    for each in family:
        each.kill()
    child.communicate()
    wait_until(lambda: all(gone(each.pid) for each in family), what="both have ended")


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_processes_and_their_children_rest_and_go_on_when_it_is_over(
    busy: psutil.Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(throttle, "core_count", lambda: 2)
    bystander = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    children, other = busy.children(), psutil.Process(bystander.pid)
    held = Throttle(0.2, lambda: [busy.pid])
    before, began = sum(busy.cpu_times()[:2]) + sum(children[0].cpu_times()[:2]), time.monotonic()
    held.start()
    try:
        both = (busy, *children)
        wait_until(lambda: all(each.status() == psutil.STATUS_STOPPED for each in both), what="both rest")
        assert other.status() != psutil.STATUS_STOPPED, "it is no process of the run"
        wait_until(lambda: held.rested_seconds > 1.0, what="they have rested for a second")
    finally:
        held.close()
        bystander.communicate()
    spent = sum(busy.cpu_times()[:2]) + sum(children[0].cpu_times()[:2]) - before
    assert spent < 0.2 * (time.monotonic() - began) + 0.3
    rested = held.rested_seconds
    assert all(each.status() != psutil.STATUS_STOPPED for each in both) and held.rested_seconds == rested


def test_a_run_that_may_use_all_cores_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "core_count", lambda: 2)
    held = Throttle(2.0, lambda: pytest.fail("nothing looks for its processes"))
    held.start()
    held.close()
    assert held.rested_seconds == held.rested_share() == 0.0
