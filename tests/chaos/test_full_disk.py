"""R18: a disk that is full costs neither the run nor what is on it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from learner.weights.checkpoint import Checkpoints, read
from replay.config import ReplayConfig
from replay.log.segments import scan
from tests.chaos.rows import Row
from tests.harness.link import Link
from tests.learner.test_loop import CONFIG, Bench
from transport.experience import Categorical, Chunk, ExperienceSpec, observed

pytestmark = pytest.mark.chaos
MEGABYTE = 1 << 20
SPEC = ExperienceSpec((observed("blob", (4096,), "|u1"),), Categorical(4), 8)
FREE = ReplayConfig(min_size=1, capacity=2_000, samples_per_insert_low=0, samples_per_insert_high=1e9)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 64 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if os.name != "posix" or os.geteuid():
        pytest.skip("a small disk of its own can be mounted by root alone")
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", folder], capture_output=True, text=True)
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def fill(disk: Path) -> Path:
    """Takes every byte that is free."""
    ballast = disk / "ballast"
    with open(ballast, "ab", buffering=0) as file:
        for size in (MEGABYTE, 4096, 1):
            try:
                while file.write(bytes(size)) == size:
                    pass
            except OSError:
                continue
    return ballast


PASS_LINE = "training continues; old files load; counted; when there is room again all is written again"


@pytest.mark.row("R18", "the disk is full: the segment log", PASS_LINE)
def test_replay_goes_on_without_its_log_and_takes_it_up_again(row: Row, disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replay.log.segment_log.RETRY_SECONDS", 0.0)
    generator = np.random.default_rng(0)
    columns = {column.name: np.zeros((SPEC.rows(8), *column.shape), column.dtype) for column in SPEC.columns}
    columns["valid"][:] = 1
    (disk / "sockets").mkdir()
    with Link(disk / "sockets", SPEC, FREE) as link:
        server, writer, sampler = link.serve(folder=disk / "replay"), link.writer(), link.sampler(batch_size=4)
        log = server.journal.log  # type: ignore[union-attr]

        def send(chunks: int) -> None:
            for _ in range(chunks):
                link.until(lambda: writer.has_credit, writer)
                columns["blob"][:] = generator.integers(256, size=columns["blob"].shape)
                writer.insert(Chunk(0, 8, columns))
            link.until(lambda: not writer.outstanding, writer)

        send(40)
        before = log.total_bytes
        ballast = fill(disk)
        send(40)
        server.measure()
        full = link.metrics.record()
        link.until(lambda: sampler.next(0) is not None)
        assert full["unlogged_chunks"] == 40 == log.unlogged and log.total_bytes == before
        assert server.ring.size == 640, "what is not on the disk is still learned from"
        ballast.unlink()
        send(40)
        assert log.unlogged == 40
        assert server.close() == "320 steps of experience could not be written to the disk and are lost"
        link.server = None
        found = scan(disk / "replay", SPEC)
        row.measured(acknowledged=120, in_memory_only=log.unlogged, restored=len(found.entries), torn=found.torn)
        assert len(found.entries) == 80 and not found.torn and not found.damaged


@pytest.mark.row("R18", "the disk is full: checkpoints", PASS_LINE)
def test_a_learner_goes_on_and_keeps_the_checkpoints_it_has(
    row: Row, disk: Path, monkeypatch: pytest.MonkeyPatch, bench_in: Callable[[Path], Bench]
) -> None:
    bench = bench_in(disk)
    every = CONFIG.checkpoint_epochs * CONFIG.updates_per_epoch
    learner = bench.learner(updates=5 * every)
    save, saved, room = learner.checkpoints.save, list[bool](), list[int]()

    def saving(epoch: int, version: int) -> bool:
        if len(saved) == 2:
            fill(disk)
        elif len(saved) == 4:
            room.append((disk / "ballast").stat().st_size)
            (disk / "ballast").unlink()
        saved.append(save(epoch, version))
        assert not list(bench.run_dir.checkpoints.glob(".*.partial"))
        sound = Checkpoints(bench.run_dir.checkpoints, 3).newest(pytest.fail)
        assert sound is not None and read(bench.run_dir.latest)[1]["epoch"] == sound[2]["epoch"]
        return saved[-1]

    monkeypatch.setattr(learner.checkpoints, "save", saving)
    learner.run()
    failed = learner.metrics.value("failed_checkpoints")
    row.measured(saves=len(saved), failed=failed, updates=learner.update.counters["updates"], full_at_bytes=room[0])
    assert saved == [True, True, False, False, True, True] and failed == 2
    assert learner.update.counters["updates"] == 5 * every
