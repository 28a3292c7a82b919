"""A run whose processes are killed all the time learns what one learns that is left alone, loses nothing and does not grow."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import psutil
import pytest

from replay.log.segments import read_chunk, scan
from tests.chaos.balance import names, names_of
from tests.chaos.checker import Stored, judge, read_evicted
from tests.chaos.history import HISTORY_VARIABLE, read_histories
from tests.chaos.rows import Row, hours
from tests.harness.run import World
from transport.compression import CorruptChunk
from transport.experience import ExperienceSpec

pytestmark = [pytest.mark.chaos, pytest.mark.alone, pytest.mark.skipif(os.name != "posix", reason="kill -9")]
SCORE = 400.0  # of 500: what `make learn-check` asks of the same preset
KILL_SECONDS = (3.0, 7.0)  # between two kills
LONGEST_SECONDS = 900
MOST_STEPS = 1.5  # of those of a run that is left alone
SOAK_HOURS = 6.0
SOAK_PERIOD_SECONDS = 60.0  # between kills; all is counted just before each
MOST_PERCENT_PER_HOUR = 1.0
SETTINGS = (
    "--preset cartpole-dqn --replay.capacity 3e6 --deploy.verbosity events --device cpu --evaluator.core-share 0.3"
).split()


def start(folder: Path, seed: int, env: str = "cart_pole", *settings: str) -> World:
    """A run that writes its history down."""
    (folder / "history").mkdir(parents=True)
    world = World(folder, f"tests.chaos.balance:{env}", [*SETTINGS, "--seed", str(seed), *settings])
    world.environment |= {HISTORY_VARIABLE: str(folder / "history")}
    world.up()
    return world


def score(world: World) -> float:
    """The greedy policy's mean return, as last evaluated."""
    return float((world.status.get("evaluation") or {}).get("return_mean") or 0.0)


class Reached:
    """The environment steps after which the policy was published that is the first to have the score.

    Not those when its evaluation is over: the evaluator is slow on purpose and is killed as well, and meanwhile actors step on.
    """

    def __init__(self) -> None:
        self.steps = 0
        self._published: list[tuple[int, int]] = []  # policy version, and the steps when it was seen first

    def look(self, world: World) -> bool:
        """Whether the score has been reached, now or before."""
        status = world.status
        version = int((status.get("learner") or {}).get("policy_version") or 0)
        if not self._published or version > self._published[-1][0]:
            self._published.append((version, int(status.get("steps") or 0)))
        if not self.steps and score(world) >= SCORE:
            evaluated = int(status["evaluation"]["policy_version"])
            self.steps = next((steps for seen, steps in self._published if seen >= evaluated), self._published[-1][1])
        return self.steps > 0


def left_alone(folder: Path, seed: int) -> int:
    """The environment steps that a run takes to the score when nobody kills anything."""
    world, reached = start(folder, seed), Reached()
    try:
        world.until(lambda: reached.look(world), f"a return of {SCORE}", LONGEST_SECONDS)
        return reached.steps
    finally:
        world.stop()


def struck(world: World, kills: int, seed: int) -> tuple[Counter[str], int]:
    """Kills so many processes, any but the supervisor; then waits for the score. Returns whom, and the steps to it."""
    choice, killed, reached = random.Random(seed), Counter[str](), Reached()
    deadline = time.monotonic() + LONGEST_SECONDS + kills * KILL_SECONDS[1]
    next_kill = time.monotonic() + choice.uniform(*KILL_SECONDS)
    while not reached.look(world) or sum(killed.values()) < kills:
        assert time.monotonic() < deadline, f"{sum(killed.values())} kills, return {score(world)}"
        assert world.supervisor is not None and world.supervisor.poll() is None, world.text[-3000:]
        if sum(killed.values()) < kills and time.monotonic() >= next_kill:
            next_kill = time.monotonic() + choice.uniform(*KILL_SECONDS)
            strike(world, choice, killed)
        time.sleep(0.1)
    return killed, reached.steps


def strike(world: World, choice: random.Random, killed: Counter[str]) -> None:
    """Kills a process, any but the supervisor."""
    name, pid = choice.choice([(name, pid) for name, pid in world.pids().items() if pid])
    try:
        os.kill(pid, signal.SIGKILL)
        killed[name] += 1
    except ProcessLookupError:  # it had died before the status said so
        pass


def taken(world: World) -> dict[str, dict[str, int]]:
    """What the processes of a run hold: all of them, and the supervisor, which nobody kills."""
    assert world.supervisor is not None
    held = {}
    for name, pids in {"all": [world.supervisor.pid, *world.pids().values()], "supervisor": [world.supervisor.pid]}.items():
        found = [psutil.Process(pid) for pid in pids]
        held[name] = {
            "bytes": sum(process.memory_info().rss for process in found),
            "descriptors": sum(process.num_fds() for process in found),
            "threads": sum(process.num_threads() for process in found),
        }
    return held


def percent_per_hour(numbers: list[int], period_seconds: float) -> float:
    """The slope of a line through numbers that were taken so far apart, of their mean."""
    at = np.arange(len(numbers)) * period_seconds / 3600
    return float(100 * np.polyfit(at, numbers, 1)[0] / np.mean(numbers))


def read_stored(folder: Path, spec: ExperienceSpec) -> Stored:
    """What the segment log holds, by the names of this simulator."""
    stored = Stored(evicted=read_evicted(folder))
    for entry in scan(folder, spec).entries:
        header = entry.header
        try:
            with entry.path.open("rb") as file:
                found = names_of(spec, read_chunk(file, entry, spec)).tolist()
        except CorruptChunk as error:
            stored.torn.append(f"chunk {header.key}: {error}")
            continue
        stored.ids += found
        stored.chunks += [header.key] * len(found)
        stored.lives[header.key] = header.writer, header.incarnation
        stored.sequences[header.key] = header.sequence
    return stored


def outcome(world: World, killed: Counter[str]) -> tuple[str, dict[str, int]]:
    """A sentence about the kills and the steps of a run that has ended, and what is wrong with its steps."""
    verdict = judge(read_histories(world.folder / "history"), read_stored(world.run_dir.segments, world.spec))
    wrong = {name: number for name, number in verdict.figures.items() if name != "mixed"}  # streams have no names here
    who = ", ".join(f"{name} {times}" for name, times in sorted(killed.items()))
    return f"{sum(killed.values())} kills ({who}); {verdict.text.partition('; mixed')[0]}", wrong


@pytest.mark.row(
    "R25",
    "any process is killed, over and over, while the run learns",
    "the score of a run that is left alone, in at most 1.5 times its environment steps; lost = doubled = torn = 0",
)
def test_a_run_that_is_struck_all_the_time_learns_as_much_and_loses_nothing(row: Row, tmp_path: Path) -> None:
    kills, seeds = row.times(short=0, whole=100), row.times(short=0, whole=1, full=5)
    for seed in range(1, seeds + 1):
        alone = left_alone(tmp_path / f"alone-{seed}", seed)
        world = start(tmp_path / f"struck-{seed}", seed)
        try:
            killed, reached = struck(world, kills, seed)
            world.until(lambda world=world: world.status.get("state") == "running", "every process back")
            assert world.stop() == 0
        finally:
            world.close()
        said, wrong = outcome(world, killed)
        row.measured(f"seed {seed}: {said}", **wrong)
        row.measured(f"return {SCORE:.0f} after {reached:,} steps, left alone after {alone:,}", share=reached / alone)
        assert not any(wrong.values())
        assert reached <= MOST_STEPS * alone
        world.run_dir.remove_sockets()


@pytest.mark.row(
    "R27",
    "a soak: a kill every minute, for hours",
    "6 h, 4 actors: resident memory, descriptors and threads grow by < 1 % an hour; lost = doubled = torn = 0",
)
def test_a_run_does_not_grow_over_hours(row: Row, tmp_path: Path) -> None:
    kills = int(hours(SOAK_HOURS) * 3600 / SOAK_PERIOD_SECONDS)
    if not kills:
        pytest.skip("lasts 6 h: make chaos ARGS='R27 --full', or as long as you like: ARGS='R27 --hours 1'")
    small = ["--actors", "4", "--replay.capacity", "50000"]  # full within the first of four quarters, which does not count
    world = start(tmp_path / "run", 27, "slow_cart_pole", *small)
    choice, killed, held = random.Random(27), Counter[str](), []
    try:
        for _ in range(kills):
            over = time.monotonic() + SOAK_PERIOD_SECONDS
            world.until(lambda over=over: time.monotonic() >= over, "a period", 2 * SOAK_PERIOD_SECONDS)  # type: ignore[misc]
            world.until(lambda: world.status.get("state") == "running", "every process back")
            held.append(taken(world))
            strike(world, choice, killed)
        world.until(lambda: world.status.get("state") == "running", "every process back")
        assert world.stop() == 0
    finally:
        world.close()
    said, wrong = outcome(world, killed)
    later = held[len(held) // 4 :]
    grew = {
        f"{who}_{what}_percent_per_hour": percent_per_hour([each[who][what] for each in later], SOAK_PERIOD_SECONDS)
        for who in ("all", "supervisor")
        for what in ("bytes", "descriptors", "threads")
    }
    row.measured(said, **wrong, **grew)
    row.measured(**{f"all_{name}": number for name, number in held[-1]["all"].items()})
    assert not any(wrong.values())
    assert max(grew.values()) < MOST_PERCENT_PER_HOUR
    world.run_dir.remove_sockets()


def test_names_of_observations_differ() -> None:
    drawn = np.random.default_rng(0).normal(size=(200_000, 4)).astype(np.float32)
    found = names(drawn)
    assert len(np.unique(found)) == len(drawn)
    assert (found >= 0).all()
