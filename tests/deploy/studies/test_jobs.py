"""The runner of jobs, over jobs whose processes are made up."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deploy.studies.jobs import STOP_SECONDS, Job, JobRunner, Queue


class StubJob(Job):
    """Runs for `turns` turns; a stubborn one has to be killed, a broken one raises in its second turn."""

    def __init__(self, turns: int, stubborn: bool = False, broken: bool = False) -> None:
        super().__init__()
        self.turns, self.stubborn, self.broken = turns, stubborn, broken
        self.place, self.running_, self.killed = -1, False, False

    @property
    def running(self) -> bool:
        return self.running_

    def work(self) -> Iterator[None]:
        self.running_ = True
        for number in range(self.turns):
            yield
            if self.broken and number == 1:
                raise RuntimeError("a bug")
        self.running_ = False

    def stop(self) -> None:
        self.running_ = self.running_ and self.stubborn

    def kill(self) -> None:
        self.running_, self.killed = False, True


class StubQueue(Queue):
    def __init__(self, *jobs: StubJob) -> None:
        self.jobs, self.left, self.lost = jobs, list(jobs), list[Job]()
        self.reason = ""

    def next(self, place: int) -> StubJob | None:
        job = self.left.pop(0) if self.left else None
        if job is not None:
            job.place = place
        return job

    def reason_to_end(self) -> str:
        return self.reason

    def abandoned(self, jobs: list[Job]) -> None:
        self.lost += jobs


class World:
    """A runner whose clock moves by a second in each pause. In a pause `then` is called."""

    def __init__(self, *jobs: StubJob, at_once: int = 1) -> None:
        self.queue, self.now, self.said = StubQueue(*jobs), 0.0, list[str]()
        self.signals = list[int]()
        self.most = self.interrupt_at = 0
        self.runner = JobRunner(self.queue, self.said.append, at_once, lambda: self.now, self.pause)

    def pause(self, seconds: float) -> None:
        self.now += 1
        self.most = max(self.most, sum(job.running for job in self.queue.jobs))
        if self.now in (self.interrupt_at, 3 * self.interrupt_at):
            self.signals.append(2)


def test_no_more_jobs_run_than_there_are_places_and_none_shares_one() -> None:
    world = World(*(StubJob(turns) for turns in (5, 2, 0, 3, 1)), at_once=2)
    world.runner.run(world.signals)
    assert world.runner.finished and not world.runner.interrupted and world.most == 2 and not world.queue.left
    assert [job.place for job in world.queue.jobs] == [0, 1, 1, 1, 0]


def test_a_reason_to_end_stops_what_runs_and_begins_nothing_more() -> None:
    world = World(StubJob(9), StubJob(9), StubJob(9), at_once=2)
    world.runner.turn()
    world.queue.reason = "too many failures"
    world.runner.run(world.signals)
    assert world.runner.reason == "too many failures" and len(world.queue.left) == 1
    assert world.queue.lost == list(world.queue.jobs[:2]) and not any(job.running or job.killed for job in world.queue.jobs)


@pytest.mark.parametrize(("interrupt_at", "killed_at"), [(2, 6), (200, 200 + STOP_SECONDS)])
def test_an_interrupt_asks_and_a_second_one_or_a_while_kills(interrupt_at: int, killed_at: float) -> None:
    orderly, stubborn = StubJob(10_000), StubJob(10_000, stubborn=True)
    world = World(orderly, stubborn, at_once=2)
    world.interrupt_at = interrupt_at
    world.runner.run(world.signals)
    assert world.runner.interrupted and world.runner.finished and world.queue.lost == [orderly, stubborn]
    assert not orderly.running and stubborn.killed and world.now == pytest.approx(killed_at, abs=2)
    assert len(world.said) == 1


def test_a_mistake_in_one_job_leaves_no_process_of_another() -> None:
    world = World(StubJob(99), StubJob(99, broken=True), at_once=2)
    with pytest.raises(RuntimeError):
        world.runner.run(world.signals)
    assert all(job.killed for job in world.queue.jobs)
