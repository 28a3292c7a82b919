"""The supervisor is killed, started twice, asked to stop and to rescale: nothing is left, nothing is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import time
from contextlib import closing
from pathlib import Path

import psutil
import pytest

from deploy.children import python_command
from replay.client.sampler import Sampler
from tests.chaos.crew import NOTHING, SPEC, Crew, cmdline, crew
from tests.chaos.rows import Row
from tests.harness.waiting import shared_memory, wait_until
from transport.experience import ExperienceSpec
from transport.lifetime import new_incarnation

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(os.name != "posix", reason="signals")]
GONE_SECONDS, STOP_SECONDS, REFUSE_SECONDS, SCALE_SECONDS = 3.0, 10.0, 2.0, 10.0
WINDOW = 8  # chunks that an actor may hold, by its credit


@pytest.mark.alone
@pytest.mark.row(
    "R5",
    "the supervisor is killed (kill -9), every other time after its reaper",
    "after 3 s no descendant, grandchildren included; no socket on the next start",
)
def test_nothing_outlives_a_killed_supervisor(row: Row, tmp_path: Path) -> None:
    times, slowest = row.times(1, 8, 20), 0.0
    with crew(tmp_path, actors=2) as run:
        for number in range(times):
            servers, all_of_them = run.start_servers(), run.descendants()
            assert len(servers) == 2 and set(servers) < set(all_of_them)
            run.tell()
            if number % 2:
                before = reaper_of(run)
                assert before is not None
                before.kill()
                run.until(lambda before=before: reaper_of(run, but=before.pid) is not None, "another reaper")
            began = time.monotonic()
            run.kill()
            wait_until(lambda: not run.descendants(), what="all have gone")
            slowest = max(slowest, time.monotonic() - began)
            assert not shared_memory() - run.shared_memory
            if number + 1 < times:
                run.up()
        assert run.run_dir.sockets is not None
        stale, unknown = run.run_dir.sockets / "supervisor", run.run_dir.sockets / "unknown"
        unknown.touch()
        swept = stale.exists()
        run.up()
        swept &= not unknown.exists()
        run.down()
        left, verdict = run.left(), run.verdict()
    row.measured(verdict.text, kills=times, slowest_seconds=slowest, **left, **verdict.figures)
    assert slowest <= row.limit(GONE_SECONDS) and left == NOTHING and swept and verdict.sound


def reaper_of(run: Crew, but: int = 0) -> psutil.Process | None:
    """The reaper of a run, if there is one; never the one with the number `but`."""
    assert run.supervisor is not None
    for child in psutil.Process(run.supervisor.pid).children():
        if "deploy.places.reaper" in cmdline(child) and child.pid != but:
            return child
    return None


@pytest.mark.row("R22", "a run is started twice", "the second refuses within 2 s; the first loses nothing")
def test_a_second_start_is_refused(row: Row, tmp_path: Path) -> None:
    times, slowest, usual, said = row.times(1, 4, 10), 0.0, 0.0, ""
    with crew(tmp_path, actors=2) as run:
        before = {process["name"]: process["pid"] for process in run.status["processes"]}
        for _ in range(times):
            began = time.monotonic()
            second = run_command(run, "up", "--env", "CartPole-v1", "--run", "crew", "--trust-config")
            slowest = max(slowest, time.monotonic() - began)
            said = second[1]
            assert second[0] != 0 and "is already up" in said and "Traceback" not in said
            began = time.monotonic()
            assert run_command(run, "list")[0] == 0
            usual = max(usual, time.monotonic() - began)
        other = run.another()  # past the first look: whoever holds the lock
        assert other.wait(60) == 3
        after = {process["name"]: process["pid"] for process in run.status["processes"]}
        run.down()
        verdict = run.verdict()
    seconds = {"slowest_refusal_seconds": slowest, "slowest_list_seconds": usual}
    row.measured(said.strip(), verdict.text, starts=times + 1, **seconds, **verdict.figures)
    # On a busy machine each command waits for a core.
    assert slowest <= max(row.limit(REFUSE_SECONDS), 3 * usual) and before == after and verdict.sound


def run_command(run: Crew, *arguments: str) -> tuple[int, str]:
    """`headrace …` until it ends: its status and what it said."""
    done = subprocess.run(
        python_command("deploy.cli.main", *arguments),
        cwd=run.folder,
        env=run.environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.alone
@pytest.mark.row("R19", "a run under load is stopped", "<= 10 s, exit 0, lost = 0, nothing left; a second Ctrl-C at once")
def test_a_stop_under_load_loses_and_leaves_nothing(row: Row, tmp_path: Path) -> None:
    times, slowest, chance = row.times(1, 8, 50), 0.0, random.Random(19)
    run = Crew(tmp_path, actors=2)
    try:
        for _ in range(times):
            run.up()
            run.wait(chance.uniform(0.2, 2.0))
            slowest = max(slowest, run.down())
            assert run.left() == NOTHING
        verdict = run.verdict()
        unsent = len(verdict.attempted) - len(verdict.stored)
        row.measured(verdict.text, stops=times, slowest_seconds=slowest, steps_not_stored=unsent, **run.left(), **verdict.figures)
        assert slowest <= row.limit(STOP_SECONDS) and verdict.sound
        assert unsent == 0, "an actor hands over all that it holds before it ends"
    finally:
        run.close()


@pytest.mark.row("R19", "a run whose learner is slow is stopped", "<= 10 s, exit 0, lost = 0, nothing left")
def test_a_stop_waits_for_no_slow_learner(row: Row, tmp_path: Path) -> None:
    with crew(tmp_path, actors=2, least_samples=1.0) as run:
        address = run.run_dir.endpoint("replay")
        assert address is not None
        with closing(Sampler(address, "learner", new_incarnation(), SPEC, 32, 1)) as learner:
            run.until(lambda: learner.next(0.1) is not None, "it draws one batch, and no other")

            def blocked() -> bool:
                learner.next(0.1)
                return run.records("replay")[-1].get("insert_hold_fraction", 0.0) > 0.9

            run.until(blocked, "the actors wait for it")
            took = run.down()
        verdict = run.verdict()
    unsent = len(verdict.attempted) - len(verdict.stored)
    row.measured(verdict.text, seconds=took, steps_not_stored=unsent, **verdict.figures)
    assert verdict.sound and unsent == 0, "what waited has been inserted"


@pytest.mark.alone
@pytest.mark.row("R19", "Ctrl-C twice", "<= 10 s, exit 0, lost = 0, nothing left; a second Ctrl-C at once")
def test_a_second_interrupt_ends_at_once(row: Row, tmp_path: Path) -> None:
    times, slowest = row.times(0, 5, 50), 0.0
    run = Crew(tmp_path, actors=2)
    try:
        for _ in range(times):
            run.up()
            run.start_servers()
            os.kill(run.pid("actor-0"), signal.SIGSTOP)  # it would hold the end up
            run.tell()
            assert run.supervisor is not None
            said = len(run.lines("stopping:"))
            run.supervisor.send_signal(signal.SIGINT)
            run.until(lambda said=said: len(run.lines("stopping:")) > said, "it begins to stop")
            run.supervisor.send_signal(signal.SIGINT)
            began = time.monotonic()
            run.supervisor.wait(30)
            slowest = max(slowest, time.monotonic() - began)
            assert run.left() == NOTHING
        verdict = run.verdict()
        row.measured(interrupts=times, slowest_seconds=slowest, **run.left(), **verdict.figures)
        assert slowest <= row.limit(2) and verdict.sound
    finally:
        run.close()


STUCK = {  # what happens to a process before the run is stopped, and the exit status of the run
    "replay is killed": ("R20", "replay", signal.SIGKILL, 1),  # a server that could not save at the stop fails the run
    "replay is stopped": ("R20", "replay", signal.SIGSTOP, 1),
    "an actor is stopped": ("R29", "actor-0", signal.SIGSTOP, 0),
    "an actor hangs, deaf to SIGTERM": ("R29", "actor-0", None, 0),
}


@pytest.mark.alone
@pytest.mark.parametrize(
    "what",
    [
        pytest.param(what, marks=pytest.mark.row(name, f"{what}, then the run is stopped", "ends <= 10 s"))
        for what, (name, *_) in STUCK.items()
    ],
)
def test_a_process_that_is_dead_or_stuck_does_not_hold_the_end(row: Row, tmp_path: Path, what: str) -> None:
    _, name, number, status = STUCK[what]
    times, slowest = row.times(0, 2, 20), 0.0
    run = Crew(tmp_path, actors=3)
    try:
        for _ in range(times):
            run.up()
            if number is None:
                run.tell(actor_0={"hang": "deadlock"})
                before = run.run_dir.status.stat().st_mtime_ns
                run.until(lambda before=before: run.run_dir.status.stat().st_mtime_ns > before, "a moment")
            else:
                os.kill(run.pid(name), number)
            slowest = max(slowest, run.down(exit_status=status))
            run.tell()
            assert ("replay died at the stop" in run.text) == bool(status) and run.left() == NOTHING
        verdict = run.verdict()
        row.measured(verdict.text, stops=times, slowest_seconds=slowest, **run.left(), **verdict.figures)
        assert slowest <= row.limit(STOP_SECONDS) and verdict.sound
    finally:
        run.close()


@pytest.mark.alone
@pytest.mark.row(
    "R21", "a run is rescaled under load", "2 to 8 to 1 to 4, 10 times: lost = doubled = 0; the count reached <= 10 s"
)
def test_rescaling_loses_and_doubles_nothing(row: Row, tmp_path: Path) -> None:
    times, slowest = row.times(0, 3, 10), 0.0
    with crew(tmp_path, actors=2) as run:
        for _ in range(times):
            for count in (8, 1, 4):
                run.scale(count)
                began = time.monotonic()
                wanted = [f"actor-{index}" for index in range(count)]
                run.until(lambda wanted=wanted: names(run) == wanted and run.actors() == wanted, f"{count} actors at work")
                slowest = max(slowest, time.monotonic() - began)
        run.down()
        left, verdict = run.left(), run.verdict()
        restarted, unsent = run.lines("starting again"), len(verdict.attempted) - len(verdict.stored)
    row.measured(verdict.text, rescales=3 * times, slowest_seconds=slowest, steps_not_stored=unsent, **verdict.figures)
    assert slowest <= row.limit(SCALE_SECONDS) and verdict.sound and left == NOTHING and not restarted
    assert unsent == 0, "who leaves hands over all that it holds"


def names(run: Crew) -> list[str]:
    """The actors that the run has, in whatever state."""
    return [process["name"] for process in run.status["processes"] if process["role"] == "actor"]


def most_held(spec: ExperienceSpec) -> int:
    """Bytes that an actor may hold for replay at most: its window, and what it is about to send, far from packed."""
    return (WINDOW + 2) * spec.chunk_length * 1024 + (8 << 20)


@pytest.mark.row(
    "R10", "replay is stopped for a while (SIGSTOP)", "actors pause, their memory bounded by the window; after SIGCONT lost = 0"
)
def test_actors_pause_while_replay_does(row: Row, tmp_path: Path) -> None:
    seconds = row.times(0, 30)
    with crew(tmp_path, actors=4) as run:
        run.wait(3)
        actors = [psutil.Process(run.pid(f"actor-{i}")) for i in range(4)]
        before = [actor.memory_info().rss for actor in actors]
        stopped = run.pid("replay")
        os.kill(stopped, signal.SIGSTOP)
        run.wait(seconds / 2)
        halfway = history_bytes(run)
        run.wait(seconds / 2)
        more, growth = history_bytes(run) - halfway, max(a.memory_info().rss - b for a, b in zip(actors, before, strict=True))
        os.kill(stopped, signal.SIGCONT)
        began = time.monotonic()
        run.until(lambda: history_bytes(run) > halfway + more + 10_000, "they go on")
        resumed = time.monotonic() - began
        restarts = sum(process["restarts"] for process in run.status["processes"])
        run.down()
        verdict = run.verdict()
    row.measured(
        verdict.text,
        seconds=seconds,
        growth_bytes=growth,
        history_bytes_while_paused=more,
        resumed_seconds=resumed,
        restarts=restarts,
        **verdict.figures,
    )
    assert more == 0 and growth <= most_held(SPEC) and restarts == 0 and verdict.sound and resumed <= 5


def history_bytes(run: Crew) -> int:
    """What all actors have written down: it grows with each step."""
    return sum(path.stat().st_size for path in run.histories.glob("*.history"))


@pytest.mark.alone
@pytest.mark.row("R23", "everything is killed at once (kill -9)", "bytes in /dev/shm after the next start as before, 100 times")
def test_shared_memory_does_not_leak(row: Row, tmp_path: Path) -> None:
    times = row.times(0, 8, 100)
    folder = Path("/dev/shm")
    run = Crew(tmp_path, actors=2)

    def used() -> int:
        return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) if folder.is_dir() else 0

    try:
        run.up()
        before = used()
        for _ in range(times):
            run.kill_all()
            run.up()
            assert used() == before
        run.down()
        verdict = run.verdict()
        row.measured(verdict.text, kills=times, bytes_more=used() - before, **run.left(), **verdict.figures)
        assert run.left() == NOTHING and verdict.sound
    finally:
        run.close()
