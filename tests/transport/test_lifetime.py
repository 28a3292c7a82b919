"""A process sends heartbeats, stops on request, and ends with its supervisor."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness.waiting import ROOT, gone, wait_until
from transport import lifetime
from transport.lifetime import INCARNATION_VARIABLE, PARENT_VARIABLE, Lifetime, new_incarnation
from transport.messages.control import Answer, Look, Order, Progress, Seen, Stop, Stopping
from transport.messages.fields import MOST_FIGURES, Message
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
Make = Callable[..., Lifetime]


@pytest.fixture
def run_dir(tmp_path: Path) -> Iterator[RunDir]:
    run = RunDir(tmp_path / "mine")
    run.create()
    yield run
    run.remove_sockets()


class Supervisor:
    """The supervisor's end: what the process has sent so far."""

    def __init__(self, run_dir: RunDir) -> None:
        self.socket = Server(run_dir.bind_address("supervisor"))
        run_dir.write_endpoint("supervisor", self.socket.address)
        self.peer = b""
        self.arrived: list[Any] = []
        self.parts: list[list[bytes]] = []

    def read(self) -> list[Any]:
        while (arrival := self.socket.receive(0.01)) is not None:
            self.peer = arrival[0]
            self.arrived.append(arrival[1])
            self.parts.append(arrival[2])
        return self.arrived

    def meets(self, made: Lifetime) -> Progress:
        """Its first report."""
        made.ready()
        wait_until(self.read, what="a report")
        return self.arrived[0]

    def records(self) -> list[dict[str, float]]:
        return [message.record for message in self.read() if isinstance(message, Progress) and message.record]

    def send(self, message: Message) -> None:
        assert self.socket.send(self.peer, message)


@pytest.fixture
def supervisor(run_dir: RunDir) -> Iterator[Supervisor]:
    made = Supervisor(run_dir)
    yield made
    made.socket.close()


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
def make_lifetime(run_dir: RunDir, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
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
        if each._control is None or not each._control.socket.closed:  # or the test has closed it
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


def beat(made: Lifetime, resting: bool = False) -> None:
    """A beat that is due, though less than half a second has passed."""
    made._next_beat = 0.0
    made.beat(resting)


def beat_until(made: Lifetime, true: Callable[[], Any], what: str, resting: bool = False) -> None:
    wait_until(lambda: (beat(made, resting), true())[1], what=what)


def close_record(made: Lifetime) -> None:
    """As if five seconds had passed."""
    made._next_record = 0.0
    beat(made)


def test_reports_carry_the_incarnation_that_the_starter_gave_and_without_reports_nothing_is_sent(
    supervisor: Supervisor, make_lifetime: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    silent = make_lifetime(reports=False)
    assert silent.incarnation != make_lifetime(reports=False).incarnation
    assert len({made for _ in range(1000) if 0 <= (made := new_incarnation()) < 2**63}) == 1000
    monkeypatch.setenv(INCARNATION_VARIABLE, "4711")
    deputy = make_lifetime()
    silent.ready()
    supervisor.meets(deputy)
    silent.close()
    deputy.close()
    wait_until(lambda: len(supervisor.read()) >= 2, what="the last record")
    assert {message.incarnation for message in supervisor.arrived} == {4711} and not silent.stopping


@pytest.mark.parametrize(("message", "flag"), [(Stop("enough"), "stopping"), (Stopping(), "run_ends")])
def test_a_message_of_the_end_sets_its_flag(supervisor: Supervisor, make_lifetime: Make, message: Message, flag: str) -> None:
    made = make_lifetime()
    first = supervisor.meets(made)
    assert (first.name, first.incarnation, first.state, first.beats) == ("actor-0", made.incarnation, "ready", 1)
    assert not made.stopping and not made.run_ends
    supervisor.send(message)
    beat_until(made, lambda: getattr(made, flag), "the flag")
    assert made.stopping != made.run_ends
    if made.stopping:
        beat_until(made, lambda: supervisor.read()[-1].state == "stopping", "the report")


def test_a_process_is_told_of_a_pause_and_says_whether_it_rests(
    supervisor: Supervisor, make_lifetime: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    made = make_lifetime()
    assert not supervisor.meets(made).resting
    supervisor.send(Order("pause", 0))
    beat_until(made, lambda: made.paused, "paused")
    made._next_record = 0.0
    capsys.readouterr()
    beat_until(made, lambda: supervisor.read()[-1].resting, "it rests", resting=True)
    assert capsys.readouterr().out == "", "no throughput line where nothing is done"
    supervisor.send(Order("unpause", 0))
    beat_until(made, lambda: not made.paused, "not paused")


def test_an_order_is_kept_until_it_is_answered_and_the_answer_is_repeated(supervisor: Supervisor, make_lifetime: Make) -> None:
    made = make_lifetime()
    assert not made.answer(True, "nobody has asked")
    supervisor.meets(made)
    order = Order("checkpoint", 7)
    supervisor.send(order)
    beat_until(made, lambda: made.order is not None, "the order")
    assert made.order == order and made.answer(False, "no\nspace") and made.order is None
    supervisor.send(order)  # once more, because the answer was late
    supervisor.send(Order("pause", 0))
    beat_until(made, lambda: made.paused, "both have arrived")
    assert made.order is None

    def repeated() -> bool:
        return [message.answer for message in supervisor.read()].count(Answer(7, False, "no?space")) >= 3

    beat_until(made, repeated, "the answer, three times")


def test_what_an_operator_wants_to_see_is_shown_once(supervisor: Supervisor, make_lifetime: Make) -> None:
    made = make_lifetime()
    supervisor.meets(made)
    supervisor.send(Look("actor-0", 7))
    beat_until(made, lambda: made.look is not None, "the look")
    seen = Seen("actor-0", 7, 3, 12, 1.5)
    made.show(seen, [b"frame"])
    assert made.look is None
    wait_until(lambda: seen in supervisor.read(), what="what it shows")
    assert supervisor.arrived.count(seen) == 1 and supervisor.parts[supervisor.arrived.index(seen)] == [b"frame"]


def test_records_are_printed_written_and_sent(
    run_dir: RunDir, supervisor: Supervisor, make_lifetime: Make, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir.settings("transport").write_text('{"record_seconds": 3600}')
    made = make_lifetime()
    made.ready()
    made.metrics.count("steps", 12)
    close_record(made)
    wait_until(supervisor.records, what="a record")
    assert supervisor.records()[0]["steps"] == 12 and "12 steps\n" in capsys.readouterr().out
    assert json.loads(run_dir.metrics("actor-0").read_text().splitlines()[0])["steps"] == 12
    made.metrics.count("steps", 3)
    for _ in range(3):
        beat(made)
    made.close()
    wait_until(lambda: len(supervisor.records()) == 2, what="the last record, and none between: the run says how often")
    assert supervisor.records()[1]["steps"] == 15


def test_metrics_by_any_name_and_in_any_number_cost_no_report(supervisor: Supervisor, make_lifetime: Make) -> None:
    made = make_lifetime()
    for name in ("loss/θ", "loss/φ", "long" * 20, *map(str, range(300))):
        made.metrics.gauge(name, 1.5)
    made.ready()
    close_record(made)
    wait_until(supervisor.records, what="a record")
    record = supervisor.records()[0]
    assert {r"loss/\u03b8", r"loss/\u03c6", "long" * 16, "99"} <= record.keys() and len(record) == MOST_FIGURES


def test_beats_are_sent_twice_a_second_however_often_the_loop_turns(supervisor: Supervisor, make_lifetime: Make) -> None:
    made = make_lifetime()
    made._next_beat = float("inf")
    for _ in range(1000):
        made.beat()
    beat(made)
    made._next_beat = float("inf")
    made.beat()
    wait_until(supervisor.read, what="a report")
    (only,) = supervisor.arrived
    assert only.beats == 1001 and only.state == "starting"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_loses_records_only(run_dir: RunDir, supervisor: Supervisor, make_lifetime: Make) -> None:
    run_dir.metrics("actor-0").symlink_to("/dev/full")
    made = make_lifetime()
    made.ready()
    made.metrics.count("steps", 7)
    close_record(made)
    made.close()
    wait_until(lambda: 7 in [record.get("steps") for record in supervisor.records()], what="a record")


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
    for platform in ("win32", "linux"):
        monkeypatch.setattr(lifetime.sys, "platform", platform)
        monkeypatch.setattr(lifetime.ctypes, "CDLL", lambda name: object())  # a libc without mallopt
        keep_memory()
        share_heap()
