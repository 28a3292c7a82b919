"""Actors are killed, hang, leak, crash: they are replaced, the others never notice, and what was acknowledged is stored once."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from deploy.places.child import LAST_WORDS_SECONDS
from tests.chaos.crew import NOTHING, Crew, crew
from tests.chaos.rows import Row
from tests.chaos.simulator import Faults
from tests.harness.waiting import gone

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(os.name != "posix", reason="signals")]
DETECT_SECONDS, ACCEPT_SECONDS = 0.5, 10.0
MOST_WORK_SECONDS = 3.0  # before a kill
WORK_SECONDS = 8.0  # between two hangs of one actor: twenty in a row are a crash loop, and given up
HANG_SECONDS, REPLACE_SECONDS = 4.0, 15.0
R2 = "SIGSTOP and busy loop: detected <= 4 s, replaced <= 15 s; no false kill with steps up to 2 s"
R13 = "one of 4 bad: <= 8 restarts in 2 min, given up, the other 3 train; all bad: exit != 0 in 2 min, the cause named"


def steps_of(run: Crew, name: str) -> int:
    """How much experience of an actor, in all its lives, has been acknowledged, by its own history."""
    return sum(path.stat().st_size for path in run.histories.glob(f"{name}-*.history"))


def successor(run: Crew, name: str, pid: int) -> bool:
    """True once another process has an actor's name, and replay has accepted its first steps."""
    now = run.process(name)["pid"]
    return now not in (None, pid) and run.acknowledged(name, now)


@pytest.mark.alone
@pytest.mark.row(
    "R1",
    "an actor is killed (kill -9) whose simulator has a server of its own",
    "lost = doubled = unexpected = mixed = 0; detected <= 0.5 s, <= 1 s where the server has a session of its own and so "
    "holds the actor's output open; first step accepted <= 10 s after (p95); no server survives the actor",
)
def test_a_killed_actor_is_replaced_and_nothing_acknowledged_is_lost(row: Row, tmp_path: Path) -> None:
    kills, chance = row.times(2, 20, 200), random.Random(1)
    detected: dict[bool, list[float]] = {False: [0.0], True: [0.0]}  # by whether the server had a session of its own
    accepted, ended = [], []
    with crew(tmp_path, actors=4) as run:
        for _ in range(kills):
            run.until(lambda: len(run.actors()) == 4, "all at work")
            run.start_servers()
            name = f"actor-{chance.randrange(4)}"  # every other one starts its server in a session of its own
            pid, told = run.pid(name), len(run.lines(f"{name} died"))
            servers = run.servers(pid)
            own_session = os.getsid(servers[0]) == servers[0]
            run.tell()
            run.wait(chance.uniform(0, MOST_WORK_SECONDS))
            os.kill(pid, signal.SIGKILL)
            began = time.monotonic()
            run.until(lambda name=name, told=told: len(run.lines(f"{name} died")) > told, "it is noticed")
            detected[own_session].append(time.monotonic() - began)
            run.until(lambda servers=servers: all(map(gone, servers)), "its server has ended")
            ended.append(time.monotonic() - began)
            run.until(lambda name=name, pid=pid: successor(run, name, pid), "its successor's first steps are accepted")
            accepted.append(time.monotonic() - began)
            run.until(lambda servers=servers: not run.zombies(servers), "the supervisor reaps its server")
        run.down()
        verdict, left = run.verdict(), run.left()
    slow, late, latest = float(np.quantile(accepted, 0.95)), max(detected[False]), max(detected[True])
    row.measured(verdict.text, kills=kills, detected_seconds=late, accepted_p95_seconds=slow, **verdict.figures)
    row.measured(detected_with_own_session_seconds=latest, servers_ended_seconds=max(ended), **left)
    assert late <= row.limit(DETECT_SECONDS) and latest <= row.limit(DETECT_SECONDS + LAST_WORDS_SECONDS)
    assert verdict.sound and slow <= row.limit(ACCEPT_SECONDS)
    assert verdict.lives == kills + 4 and left == NOTHING


@pytest.mark.alone
@pytest.mark.row("R2", "an actor hangs", R2)
def test_hanging_actors_are_replaced(row: Row, tmp_path: Path) -> None:
    rounds = row.times(1, 4, 20)
    detected, replaced = [], []
    with crew(tmp_path, actors=2) as run:
        for number in range(rounds):
            run.until(lambda: len(run.actors()) == 2, "both at work")
            if number:
                run.wait(WORK_SECONDS)
            pids, seen = [run.pid(f"actor-{index}") for index in range(2)], [steps_of(run, f"actor-{i}") for i in range(2)]
            run.until(lambda seen=seen: all(steps_of(run, f"actor-{i}") > seen[i] for i in range(2)), "both step")
            # Only this process hangs. One that replaced it before the other is noticed would hang before its second report,
            # which is allowed to take a minute.
            run.tell(actor_1={"hang": ("busy", "deadlock")[number % 2], "pid": pids[1]})
            os.kill(pids[0], signal.SIGSTOP)
            began = time.monotonic()
            run.until(lambda number=number: len(run.lines("hung: no report")) == 2 * number + 2, "both are noticed")
            detected.append(time.monotonic() - began)
            run.tell()
            run.until(lambda pids=pids: all(successor(run, f"actor-{i}", pids[i]) for i in range(2)), "both are replaced")
            replaced.append(time.monotonic() - began)
        causes = {run.process(name)["last_exit"] for name in ("actor-0", "actor-1")}
        run.down()
        verdict = run.verdict()
    row.measured(
        verdict.text, hangs=2 * rounds, detected_seconds=max(detected), replaced_seconds=max(replaced), **verdict.figures
    )
    assert max(detected) <= row.limit(HANG_SECONDS) and max(replaced) <= row.limit(REPLACE_SECONDS) and verdict.sound
    assert all(str(cause).startswith("hung: no report for") for cause in causes)


@pytest.mark.row("R2", "slow simulators", R2)
def test_slow_steps_are_no_hang(row: Row, tmp_path: Path) -> None:
    seconds, chance = row.times(0, 45, 1800), random.Random(2)
    with crew(tmp_path, actors=4) as run:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            slow: dict[str, Faults] = {f"actor_{i}": {"step_seconds": chance.choice((0.01, 0.5, 1.0, 2.0))} for i in range(4)}
            run.tell(**slow)
            run.wait(chance.uniform(1, 8))
        restarts, died = sum(process["restarts"] for process in run.status["processes"]), run.lines("died")
        run.tell()
        run.down()
    row.measured(*died[:1], seconds=seconds, false_kills=restarts)
    assert restarts == 0


@pytest.mark.row(
    "R12", "an actor leaks", "the reason is logged as out of memory, restarted with back-off, the others' rate changes < 10 %"
)
def test_a_leaking_actor_is_ended_by_its_limit_and_the_others_go_on(row: Row, tmp_path: Path) -> None:
    deaths, limit = row.times(0, 4), 300_000_000
    with crew(tmp_path, actors=3, memory_bytes=limit) as run:
        spans = [measure_rate(run, 3.0)] if deaths > 1 else []
        run.tell(actor_0={"leak_bytes": 1_000_000})  # a hundred steps a second at most: 50 to 100 MB/s
        run.until(lambda: len(run.lines("actor-0 died (out of memory")) >= deaths, "it dies of it", 120)
        if deaths > 1:
            run.tell()
            run.until(lambda: len(run.actors()) == 3, "all at work")
            run.tell(actor_0={"leak_bytes": 1_000_000})
            spans.append(measure_rate(run, 3.0))
        lines, others = run.lines("actor-0 died (out of memory"), [run.process(f"actor-{i}")["restarts"] for i in (1, 2)]
        run.tell()
        run.down()
        verdict = run.verdict()
    change = spans[1] / spans[0] - 1 if spans else 0.0
    row.measured(lines[0].partition("| ")[2], deaths=len(lines), others_rate_change=change, others_restarts=sum(others))
    assert others == [0, 0] and verdict.sound and abs(change) < 0.1
    assert "actors.memory_bytes" in lines[0] and (deaths == 1 or any("again in" in line for line in lines))


def measure_rate(run: Crew, seconds: float) -> float:
    """Bytes of history per second that actors 1 and 2 write: so many steps."""
    before, began = [steps_of(run, f"actor-{i}") for i in (1, 2)], time.monotonic()
    run.wait(seconds)
    passed = time.monotonic() - began
    return (sum(steps_of(run, f"actor-{i}") for i in (1, 2)) - sum(before)) / passed


CGROUPS = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")


@pytest.fixture
def small_cgroup() -> Iterator[Path]:
    """A memory cgroup of 150 MB, where this user may make one."""
    for top, limit in zip(CGROUPS, ("memory.limit_in_bytes", "memory.max"), strict=True):
        made = top / f"headrace-{os.getpid()}"
        try:
            made.mkdir()
            (made / limit).write_text("150000000")
        except OSError:
            if made.is_dir():
                made.rmdir()
            continue
        yield made
        made.rmdir()
        return
    pytest.skip("no memory cgroup can be made here")


@pytest.mark.row(
    "R12", "the kernel runs out of memory", "the reason is logged as out of memory, restarted with back-off, the others live"
)
def test_an_actor_that_the_kernel_chose_is_known_from_one_that_was_killed(row: Row, tmp_path: Path, small_cgroup: Path) -> None:
    row.times(0, 1)
    with crew(tmp_path, actors=2) as run:
        struck = run.pid("actor-0")
        os.kill(struck, signal.SIGKILL)
        run.until(lambda: run.lines("actor-0 died"), "a mere kill is noticed")
        run.until(lambda: len(run.actors()) == 2 and run.pid("actor-0") != struck, "both at work")
        (small_cgroup / "cgroup.procs").write_text(str(run.pid("actor-0")))
        run.wait(2.5)  # the supervisor looks each second
        run.tell(actor_0={"leak_bytes": 2_000_000})
        run.until(lambda: len(run.lines("actor-0 died")) == 2, "it dies of it")
        run.tell()
        lines = [line.partition("| ")[2] for line in run.lines("actor-0 died")]
        run.until(lambda: len(run.actors()) == 2, "both at work again")
        other = run.process("actor-1")["restarts"]
        run.down()
    row.measured(*lines, others_restarts=other)
    assert "killed by SIGKILL" in lines[0] and "out of memory: killed by the kernel" in lines[1] and other == 0


@pytest.mark.row("R13", "a simulator that fails at every reset", R13)
def test_a_crash_loop_of_one_is_given_up_and_the_others_train(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    with crew(tmp_path, actors=4) as run:
        run.tell(actor_0={"raise_at_reset": True})
        os.kill(run.pid("actor-0"), signal.SIGKILL)
        began = time.monotonic()
        run.until(lambda: run.lines("actor-0 died", "abandoned"), "it is given up", 125)
        took, process = time.monotonic() - began, run.process("actor-0")
        before = [steps_of(run, f"actor-{i}") for i in (1, 2, 3)]
        run.until(lambda: all(steps_of(run, f"actor-{i + 1}") > before[i] for i in range(3)), "the others step")
        run.until(lambda: run.process("actor-0")["state"] == "failed", "status shows it")
        run.tell()
        assert run.scale(4).before == 4
        run.until(lambda: "actor-0" in run.actors(), "who had been given up is tried again when asked for")
        run.down()
        verdict = run.verdict()
    row.measured(run.lines("abandoned")[0].partition("| ")[2], restarts=process["restarts"], given_up_seconds=took)
    assert process["restarts"] <= 8 and took <= 120 and verdict.sound


@pytest.mark.alone
@pytest.mark.row("R13", "every simulator fails at every reset", R13)
def test_a_crash_loop_of_all_ends_the_run_and_names_the_cause(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    run = Crew(tmp_path, actors=4)
    try:
        run.tell(everyone={"raise_at_reset": True})
        run.start()
        began = time.monotonic()
        assert run.supervisor is not None
        status = run.supervisor.wait(125)
        took = time.monotonic() - began
        row.measured(run.lines("failed:")[0].partition("| ")[2], exit_status=status, seconds=took)
        assert status != 0 and took <= 120
        assert "every actor failed (exit 1: RuntimeError: this simulator was told to fail at reset)" in run.text
        assert run.left() == NOTHING
    finally:
        run.close()
