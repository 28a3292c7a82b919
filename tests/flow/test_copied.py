"""A run whose folder is lost goes on from a copy that was made, file by file, while it was up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.log.segments import segments
from tests.harness.run import World

pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.alone]

SETTINGS = """
--evaluator.enabled false --replay.capacity 20_000 --replay.min-size 64 --learner.batch-size 32
--learner.updates-per-epoch 10 --learner.checkpoint-epochs 1 --algorithm.hidden 16 --device cpu --seed 0
""".split()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    run = World(tmp_path, "CartPole-v1", SETTINGS)
    yield run
    run.close()
    run.run_dir.remove_sockets()


def copied(run: World, copy: Path) -> None:
    """As `rsync -a --exclude keys --exclude logs --exclude sockets` does; what is removed meanwhile is left out."""

    def each(source: str, target: str) -> str:
        try:
            return shutil.copy2(source, target)
        except FileNotFoundError:
            return target

    shutil.copytree(run.run_dir.path, copy, copy_function=each, ignore=shutil.ignore_patterns("keys", "logs", "sockets", ".*"))


def test_a_run_whose_folder_is_lost_goes_on_from_a_copy(run: World, tmp_path: Path) -> None:
    run.up()
    run.until(lambda: list(run.run_dir.checkpoints.glob("epoch-*")), "a checkpoint")
    run.until(lambda: segments(run.run_dir.segments), "a segment")
    copied(run, tmp_path / "copy")
    steps = run.status["steps"]
    run.kill()
    shutil.rmtree(run.run_dir.path)
    shutil.copytree(tmp_path / "copy", run.run_dir.path)
    run.up()
    assert "replay   | restored" in run.text and "the learner continues from checkpoints/epoch-" in run.text
    run.until(lambda: run.status["replay"]["items"], "replay has reported what it has restored")
    assert run.status["steps"] >= 0.5 * steps
    assert run.interrupt() == 0


def test_a_run_whose_folder_is_deleted_while_it_is_up_ends(run: World, tmp_path: Path) -> None:
    run.up()
    run.run_dir.path.rename(tmp_path / "gone")
    assert run.ended() == 1 and "was deleted" in run.text
