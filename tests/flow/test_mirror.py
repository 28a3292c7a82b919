"""A run with a mirror whose folder is lost: that is said, the mirror is copied back as it says, and the run goes on."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.launch.mirror.note import read_note
from replay.log.segments import segments
from tests.harness.run import World

pytestmark = [pytest.mark.flow, pytest.mark.slow, pytest.mark.alone]

SETTINGS = """
--deploy.mirror disk --evaluator.enabled false --replay.capacity 20_000 --replay.min-size 64 --learner.batch-size 32
--learner.updates-per-epoch 10 --learner.checkpoint-epochs 1 --algorithm.hidden 16 --device cpu --seed 0
""".split()


@pytest.fixture
def run(tmp_path: Path) -> Iterator[World]:
    (tmp_path / "disk").mkdir()
    run = World(tmp_path, "CartPole-v1", SETTINGS)
    yield run
    run.close()
    run.run_dir.remove_sockets()


def test_a_run_whose_folder_is_lost_goes_on_from_its_mirror(run: World, tmp_path: Path) -> None:
    mirror = tmp_path / "disk" / "mine"
    run.up()
    run.until(lambda: len(segments(mirror / "replay")) >= 3, "three segments in the mirror")
    run.until(lambda: list((mirror / "checkpoints").glob("epoch-*")), "a checkpoint, too")
    # What is there may be of a pass that has not ended, and the note that of the one before, when the run had no steps.
    run.until(lambda: (note := read_note(mirror)) and note.steps > 0, "the mirror says from when it is")
    run.kill()
    note = read_note(mirror)
    assert note is not None and not (mirror / "keys").exists() and not (mirror / "logs").exists()
    shutil.rmtree(run.run_dir.path)
    refused = run.command_apart("up", "--run", "mine", "--env", "CartPole-v1", "--deploy.mirror", "disk")
    assert refused.returncode == 3 and refused.stderr.count("\n") == 1
    assert "bring it back with `cp -a disk/mine runs/mine`" in refused.stderr and not run.run_dir.config.exists()
    shutil.copytree(mirror, run.run_dir.path)
    run.up()
    assert f"copy of its mirror of step {note.steps:,}" in run.text and "is lost" in run.text
    assert "replay   | restored" in run.text and "the learner continues from checkpoints/epoch-" in run.text
    run.until(lambda: run.status["replay"]["items"], "replay has reported what it has restored")
    assert run.status["steps"] >= note.steps > 0
    assert run.process("mirror")["state"] == "ready"
    assert run.interrupt() == 0 and "mirror   | disk/mine is complete" in run.text
    own, copied = (sorted(path.read_bytes() for path in segments(folder / "replay")) for folder in (run.run_dir.path, mirror))
    assert own == copied and (mirror / "replay" / "state.npz").read_bytes() == (run.run_dir.segments / "state.npz").read_bytes()


def test_a_run_whose_folder_is_deleted_while_it_is_up_says_where_its_mirror_is(run: World, tmp_path: Path) -> None:
    run.up()
    run.until(lambda: (note := read_note(tmp_path / "disk" / "mine")) and note.copied, "the first copy")
    run.run_dir.path.rename(tmp_path / "gone")
    assert run.ended() == 1 and "was deleted; its mirror is disk/mine" in run.text
    assert (tmp_path / "disk" / "mine" / "config.toml").is_file()
