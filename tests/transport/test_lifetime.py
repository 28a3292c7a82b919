"""A process sends heartbeats, stops on request, and ends with its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import ROOT, gone, wait_until
from transport import lifetime
from transport.lifetime import INCARNATION_VARIABLE, PARENT_VARIABLE, Lifetime, new_incarnation
from transport.messages.control import Answer, Look, Order, Progress, Seen, Stop, Stopping
from transport.messages.fields import MOST_FIGURES
from transport.run_dir import RunDir
from transport.sockets.server import Server
from transport.system import keep_memory, share_heap

CHILD = """
import sys, time
from pathlib import Path
from transport.lifetime import Lifetime
from transport.run_dir import RunDir
from transport.text import say
lifetime = Lifetime("actor-0", RunDir(Path(sys.argv[1])), lambda record: f"{record['steps']:.0f} steps")
lifetime.ready()
say("ready")
while not lifetime.stopping:
    lifetime.metrics.count("steps")
    lifetime.sleep(0.01)
lifetime.close()
say("closed")
"""
# Starts the child above as its supervisor would, prints its pid, and waits.
PARENT = f"""
import os, subprocess, sys, time
environment = os.environ | {{"{PARENT_VARIABLE}": str(os.getpid())}}
child = subprocess.Popen([sys.executable, "-c", sys.argv[2], sys.argv[1]], env=environment)
print(child.pid, flush=True)
time.sleep(600)
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    run = RunDir(tmp_path / "mine")
    run.create()
    yield run
    run.remove_sockets()


@pytest.fixture
def server(run_dir: RunDir) -> Iterator[Server]:
    """The supervisor's end."""
    made = Server(run_dir.bind_address("supervisor"))
    run_dir.write_endpoint("supervisor", made.address)
    yield made
    made.close()


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def make(code: str, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *arguments]
        started.append(subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield make
    for process in started:
        process.kill()
        with process:
            pass


@pytest.fixture
def make_lifetime(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], Lifetime]]:
    """Makes lifetimes in the test's own process, and restores the signal handlers."""
    monkeypatch.delenv(PARENT_VARIABLE, raising=False)
    monkeypatch.setattr(lifetime, "keep_memory", lambda: None)
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    made: list[Lifetime] = []

    def make(**options: Any) -> Lifetime:
        made.append(Lifetime("actor-0", run_dir, lambda record: f"{record.get('steps', 0):.0f} steps", **options))
        return made[-1]

    yield make
    for each in made:
        with suppress(ValueError):  # a test has closed it
            each.close()
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.skipif(os.name != "posix", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_only_sets_the_flag_and_the_loop_ends_by_itself(run_dir: RunDir, start: Start, number: signal.Signals) -> None:
    child = start(CHILD, str(run_dir.path))
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    child.send_signal(number)
    assert child.wait(60) == 0
    assert child.stdout.readlines()[-1] == "closed\n"
    last = json.loads(run_dir.metrics("actor-0").read_text().splitlines()[-1])
    assert "uptime_seconds" in last, "the last interval is written too"


def test_reports_carry_the_incarnation_that_the_starter_gave_and_without_reports_nothing_is_sent(
    run_dir: RunDir, server: Server, make_lifetime: Callable[..., Lifetime], monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = make_lifetime(reports=False)
    monkeypatch.setenv(INCARNATION_VARIABLE, "4711")
    deputy = make_lifetime()
    silent.ready()
    deputy.ready()
    arrived = server.receive(30)
    assert arrived is not None and arrived[1].incarnation == 4711
    silent.close()
    deputy.close()
    incarnations = set[int]()

    def last_record() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            incarnations.add(arrival[1].incarnation)
        return bool(incarnations)

    wait_until(last_record, what="the last record")
    assert incarnations == {4711}


def test_replay_hears_of_the_end_of_the_run_before_its_own(
    run_dir: RunDir, server: Server, make_lifetime: Callable[[], Lifetime]
) -> None:
    made = make_lifetime()
    made.ready()
    arrived = server.receive(30)
    assert arrived is not None and not made.run_ends
    server.send(arrived[0], Stopping())

    def told() -> bool:
        made._next_beat = 0.0
        made.beat()
        return made.run_ends

    wait_until(told, what="the flag")
    assert not made.stopping


def test_a_stop_message_sets_the_flag(run_dir: RunDir, server: Server, make_lifetime: Callable[[], Lifetime]) -> None:
    made = make_lifetime()
    made.ready()
    arrived = server.receive(30)
    assert arrived is not None and isinstance(arrived[1], Progress)
    assert (arrived[1].name, arrived[1].incarnation, arrived[1].state, arrived[1].beats) == (
        "actor-0",
        made.incarnation,
        "ready",
        1,
    )
    server.send(arrived[0], Stop("enough"))

    def stopped() -> bool:
        made._next_beat = 0.0  # else a second would have to pass
        made.beat()
        return made.stopping

    wait_until(stopped, what="the flag")
    states: list[str] = []

    def reported() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            states.append(arrival[1].state)
        return "stopping" in states

    wait_until(reported, what="the report")


def beat_until(made: Lifetime, true: Callable[[], bool], what: str, resting: bool = False) -> None:
    def found() -> bool:
        made._next_beat = 0.0  # else half a second would have to pass
        made.beat(resting)
        return true()

    wait_until(found, what=what)


def test_a_process_is_told_of_a_pause_and_says_whether_it_rests(
    server: Server, make_lifetime: Callable[[], Lifetime], capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_lifetime()
    made.ready()
    arrived = server.receive(30)
    assert arrived is not None and not arrived[1].resting
    server.send(arrived[0], Order("pause", 0))
    beat_until(made, lambda: made.paused, "paused")
    rests: list[bool] = []

    def reported() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            rests.append(arrival[1].resting)
        return True in rests

    made._next_record = 0.0
    capsys.readouterr()
    beat_until(made, reported, "it rests", resting=True)
    assert capsys.readouterr().out == "", "no throughput line where nothing is done"
    server.send(arrived[0], Order("unpause", 0))
    beat_until(made, lambda: not made.paused, "not paused")


def test_an_order_is_kept_until_it_is_answered_and_the_answer_is_repeated(
    server: Server, make_lifetime: Callable[[], Lifetime]
) -> None:
    made = make_lifetime()
    assert not made.answer(True, "nobody has asked")
    made.ready()
    arrived = server.receive(30)
    assert arrived is not None
    order = Order("checkpoint", 7)
    server.send(arrived[0], order)
    beat_until(made, lambda: made.order is not None, "the order")
    assert made.order == order and made.answer(False, "no\nspace") and made.order is None
    answers: list[Answer | None] = []

    def repeated() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            answers.append(arrival[1].answer)
        return answers.count(Answer(7, False, "no?space")) >= 3

    server.send(arrived[0], order)  # once more, because the answer was late
    server.send(arrived[0], Order("pause", 0))
    beat_until(made, lambda: made.paused, "both have arrived")
    assert made.order is None
    beat_until(made, repeated, "the answer, three times")


def test_what_an_operator_wants_to_see_is_shown_once(server: Server, make_lifetime: Callable[[], Lifetime]) -> None:
    made = make_lifetime()
    made.ready()
    arrived = server.receive(30)
    assert arrived is not None and made.look is None
    server.send(arrived[0], Look("actor-0", 7))
    beat_until(made, lambda: made.look is not None, "the look")
    assert made.look == Look("actor-0", 7)
    seen = Seen("actor-0", 7, 3, 12, 1.5)
    made.show(seen, [b"frame"])
    assert made.look is None
    shown: list[tuple[object, list[bytes]]] = []

    def has_arrived() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            if isinstance(arrival[1], Seen):
                shown.append((arrival[1], arrival[2]))
        return bool(shown)

    wait_until(has_arrived, what="what it shows")
    assert shown == [(seen, [b"frame"])]


def test_records_are_printed_written_and_sent(
    run_dir: RunDir, server: Server, make_lifetime: Callable[[], Lifetime], capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_lifetime()
    made.ready()
    made.metrics.count("steps", 12)
    made._next_beat = made._next_record = 0.0  # five seconds have passed
    made.beat()
    records: list[dict[str, float]] = []

    def arrived() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            if arrival[1].record:
                records.append(arrival[1].record)
        return bool(records)

    wait_until(arrived, what="a record")
    assert records[0]["steps"] == 12
    assert "12 steps\n" in capsys.readouterr().out
    assert json.loads(run_dir.metrics("actor-0").read_text().splitlines()[0])["steps"] == 12
    made.metrics.count("steps", 3)
    records.clear()
    made.close()
    wait_until(arrived, what="the last record")
    assert records[0]["steps"] == 15


def test_metrics_by_any_name_and_in_any_number_cost_no_report(server: Server, make_lifetime: Callable[[], Lifetime]) -> None:
    made = make_lifetime()
    for name in ("loss/θ", "loss/φ", "long" * 20, *map(str, range(300))):
        made.metrics.gauge(name, 1.5)
    made.ready()
    made._next_beat = made._next_record = 0.0  # five seconds have passed
    made.beat()
    record: dict[str, float] = {}

    def arrived() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            record.update(arrival[1].record)
        return bool(record)

    wait_until(arrived, what="a record")
    assert {r"loss/\u03b8", r"loss/\u03c6", "long" * 16, "99"} <= record.keys() and len(record) == MOST_FIGURES


def test_beats_are_sent_once_a_second_however_often_the_loop_turns(server: Server, make_lifetime: Callable[[], Lifetime]) -> None:
    made = make_lifetime()
    made._next_beat = float("inf")
    for _ in range(1000):
        made.beat()
    made._next_beat = 0.0
    made.beat()
    arrived = server.receive(30)
    assert arrived is not None and arrived[1].beats == 1001 and arrived[1].state == "starting"
    assert server.receive(0) is None


def test_records_are_written_as_often_as_the_run_says(run_dir: RunDir, make_lifetime: Callable[[], Lifetime]) -> None:
    run_dir.settings("transport").write_text('{"record_seconds": 0.05}')
    made = make_lifetime()
    made.ready()

    def written() -> bool:
        made._next_beat = 0.0
        made.beat()
        return run_dir.metrics("actor-0").read_bytes().count(b"\n") >= 3

    wait_until(written, what="three records")


def test_a_process_works_without_a_supervisor(make_lifetime: Callable[[], Lifetime]) -> None:
    made = make_lifetime()
    made.ready()
    made.beat()
    assert not made.stopping


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_loses_records_only(run_dir: RunDir, server: Server, make_lifetime: Callable[[], Lifetime]) -> None:
    run_dir.metrics("actor-0").symlink_to("/dev/full")
    made = make_lifetime()
    made.ready()
    made.metrics.count("steps", 7)
    made._next_beat = made._next_record = 0.0
    made.beat()
    made.close()
    sent: list[float] = []

    def arrived() -> bool:
        while (arrival := server.receive(0.01)) is not None:
            sent.append(arrival[1].record.get("steps", 0))
        return 7 in sent

    wait_until(arrived, what="a record")


@pytest.mark.skipif(sys.platform == "darwin", reason="there a thread checks once a second")
def test_a_child_ends_soon_after_its_supervisor_is_killed(run_dir: RunDir, start: Start) -> None:
    parent = start(PARENT, str(run_dir.path), CHILD)
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    assert parent.stdout.readline() == "ready\n"
    parent.kill()
    parent.wait(60)
    wait_until(lambda: gone(child), what="the child's end")


@pytest.mark.skipif(sys.platform == "darwin", reason="there a thread checks once a second")
def test_a_child_whose_supervisor_has_already_ended_ends_at_once(
    run_dir: RunDir, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PARENT_VARIABLE, "1")  # the real parent is this test
    assert start(CHILD, str(run_dir.path)).wait(60) == 1


def test_keeping_memory_is_harmless_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime.sys, "platform", "win32")
    keep_memory()
    share_heap()
    monkeypatch.setattr(lifetime.sys, "platform", "linux")
    monkeypatch.setattr(lifetime.ctypes, "CDLL", lambda name: object())  # a libc without mallopt
    keep_memory()
    share_heap()


def test_incarnations_differ() -> None:
    incarnations = {new_incarnation() for _ in range(1000)}
    assert len(incarnations) == 1000 and all(0 <= each < 2**63 for each in incarnations)
