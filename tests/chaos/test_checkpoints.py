"""R4, R17: a learner that dies, however and whenever, goes on from its newest sound checkpoint."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from learner.weights.checkpoint import Checkpoints
from learner.weights.errors import CheckpointError
from learner.weights.manifest import MANIFEST, read_manifest
from replay.log.segments import Scan, read_chunk, scan_segment, segments
from tests.chaos.rows import Row
from tests.harness.run import World
from tests.harness.waiting import ROOT

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(os.name != "posix", reason="signals")]

SETTINGS = """
--actors.envs-per-actor 2 --actors.chunk-seconds 0.2 --env.chunk-length 16 --algorithm.hidden 16 --replay.min-size 100
--replay.samples-per-insert-low 0 --replay.samples-per-insert-high 1_000_000 --learner.batch-size 16
--learner.updates-per-epoch 20 --learner.publish-epochs 1 --learner.checkpoint-epochs 1 --evaluator.enabled false
--deploy.restarts 1000 --device cpu --seed 0
""".split()


def saving(folder: Path, kills: int) -> dict[str, int]:
    """The counts of tests/chaos/saving.py."""
    command = [sys.executable, "-m", "tests.chaos.saving", str(folder), str(kills)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=600, env=os.environ | {"OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return seen


def write_some(folder: Path, epochs: int = 3) -> Checkpoints:
    folder.mkdir(exist_ok=True)
    checkpoints = Checkpoints(folder, keep=3)
    for epoch in range(1, epochs + 1):
        about = {"epoch": str(epoch), "policy_version": str(10 * epoch)}
        checkpoints.write(epoch, {"x": np.full(999, epoch, np.float32)}, about)
    return checkpoints


Harm = Callable[[Path], object]


def flip(path: Path, place: int = -9) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


def harm_newest(harm: Callable[[Path], object]) -> Harm:
    return lambda folder: harm(folder / "epoch-0000000003.safetensors")


def manifest(text: bytes) -> Harm:
    return lambda folder: (folder / MANIFEST).write_bytes(text)


def without_manifest(harm: Harm) -> Harm:
    """Then only the checksum inside a file is left."""
    return lambda folder: (harm(folder), (folder / MANIFEST).unlink())


cut = harm_newest(lambda path: path.write_bytes(path.read_bytes()[:-5]))
emptied = harm_newest(lambda path: path.write_bytes(b""))
flipped = harm_newest(flip)
flipped_metadata = harm_newest(lambda path: flip(path, 20))
HARMS: dict[str, tuple[Harm, int, str]] = {  # the epoch that is loaded then, and a word of the warning
    **{
        f"{name}{' and no manifest' if alone else ''}": (without_manifest(harm) if alone else harm, 2, "epoch-0000000003")
        for name, harm in {"cut": cut, "emptied": emptied, "a bit": flipped, "a bit of its metadata": flipped_metadata}.items()
        for alone in (False, True)
    },
    "an older one in its place": (
        harm_newest(lambda path: shutil.copy(path.with_name("epoch-0000000001.safetensors"), path)), 2, "epoch-0000000003",
    ),
    "a manifest cut": (manifest(b'{"files": {"epoch-0000000003'), 3, MANIFEST),
    "a manifest not UTF-8": (manifest(b"\xff\xfe"), 3, MANIFEST),
    "a manifest nested": (manifest(b'{"files": ' * 100_000), 3, MANIFEST),
    "a manifest huge": (manifest(b" " * (2 << 20)), 3, MANIFEST),
    "a manifest with another field": (manifest(b'{"files": {}, "run": "rm -rf"}'), 3, MANIFEST),
    "a manifest with a digest that is none": (
        manifest(b'{"files": {"epoch-0000000003.safetensors": {"sha256": "x", "bytes": 1, "policy_version": 1}}}'), 3, MANIFEST,
    ),
    "a manifest with a size below nothing": (
        manifest(b'{"files": {"x": {"sha256": "%s", "bytes": -1, "policy_version": 1}}}' % (b"0" * 64)), 3, MANIFEST,
    ),
    "a manifest that is a pickle": (manifest(b"\x80\x04\x95cos\nsystem\n(S'true'\ntR."), 3, MANIFEST),
    "a manifest behind": (  # as after a kill between the file and the manifest
        manifest(b'{"files": {}}'), 3, "not in manifest.json yet",
    ),
}  # fmt: skip


@pytest.mark.row(
    "R17",
    "kill -9 while a checkpoint is written; damaged checkpoints and manifests",
    "always the newest valid one, with a warning",
)
def test_whatever_happens_to_the_newest_checkpoint_the_newest_sound_one_is_loaded(row: Row, tmp_path: Path) -> None:
    seen = saving(tmp_path / "killed", row.times(6, 200))
    row.measured(**seen)
    assert seen["lost"] == seen["wrong"] == seen["complaints"] == 0
    assert seen["kills"] < 100 or (seen["inside a file"] and seen["not in the manifest"]), "no kill was in the middle"
    for name, (harm, epoch, said) in HARMS.items():
        folder = tmp_path / name.replace(" ", "-")
        checkpoints = write_some(folder)
        harm(folder)
        lines: list[str] = []
        found = checkpoints.newest(lines.append)
        assert found is not None and found[2]["epoch"] == str(epoch) and (found[1]["x"] == epoch).all(), name
        assert said in lines[0] and all("\n" not in line and len(line) < 400 for line in lines), (name, lines)
        assert len(lines) == 1 or name == "a manifest behind", (name, lines)
        checkpoints.write(4, {"x": np.zeros(3, np.float32)}, {"epoch": "4", "policy_version": "40"})
        listed = list(read_manifest(folder) or {})
        assert "epoch-0000000004.safetensors" in listed, name
        if said == MANIFEST:
            assert lines[0].startswith(MANIFEST) and len(lines[0]) < 300 and len(listed) == 1, (name, "begun anew")
    all_damaged = write_some(tmp_path / "all")
    for path in all_damaged.paths():
        flip(path)
    lines = []
    with pytest.raises(CheckpointError, match="--fresh"):  # a run never begins from scratch by itself
        all_damaged.newest(lines.append)
    assert len(lines) == 3
    row.measured(harms=len(HARMS) + 1)


class Lives:
    """What is known of a run's learner from outside."""

    def __init__(self, world: World) -> None:
        """Of a run that is up."""
        self.world = world

    @property
    def announced(self) -> int:
        try:
            return int(self.world.run_dir.announced.read_text())
        except (OSError, ValueError):
            return -1

    @property
    def newest_epoch(self) -> int:
        return max((entry.epoch or 0 for entry in (read_manifest(self.world.run_dir.checkpoints) or {}).values()), default=0)

    def acted_under(self) -> dict[str, int]:
        """By actor, the policy version of the last step that it has stored."""
        found, spec = Scan(), self.world.spec
        for path in segments(self.world.run_dir.segments)[-3:]:
            scan_segment(path, spec, found)
        newest = {entry.header.writer: entry for entry in found.entries}
        versions = {}
        for name, entry in newest.items():
            with open(entry.path, "rb") as file:
                versions[name] = int(read_chunk(file, entry, spec).columns["policy_version"][spec.history])
        return versions


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path, "tests.flow.counting_env:slow_vector", SETTINGS)
    yield made
    made.close()
    made.run_dir.remove_sockets()


@pytest.mark.row(
    "R4",
    "learner kill -9, mid-save included",
    "resumes every time; step regress <= 1 interval; actors adopt <= 5 s; never from scratch",
)
def test_a_learner_killed_at_any_moment_goes_on_from_its_newest_checkpoint(row: Row, world: World) -> None:
    kills = row.times(0, 8, 20)
    world.up()
    lives, generator = Lives(world), random.Random(1)
    regress, adopting, inside = [], [], 0
    for kill in range(kills):
        before = lives.announced
        world.until(lambda before=before: lives.announced > before + 3 and lives.newest_epoch, "the learner learns")  # type: ignore[misc]
        time.sleep(generator.uniform(0, 0.3))
        epoch, version = lives.newest_epoch, lives.announced
        process = world.process("learner")
        os.kill(process["pid"], signal.SIGKILL)
        inside += bool(list(world.run_dir.checkpoints.glob(".*.partial")))
        world.until(lambda version=version: lives.announced > version, f"a learner after kill {kill + 1}")  # type: ignore[misc]
        back, adopted = time.monotonic(), lives.announced
        world.until(
            lambda adopted=adopted: min(lives.acted_under().values()) >= adopted,
            "both actors act under what it has published",  # type: ignore[misc]
        )
        adopting.append(time.monotonic() - back)
        lines = [line for line in world.text.splitlines() if "continues from epoch-" in line]
        assert len(lines) == kill + 1, "a life began from scratch"
        regress.append(epoch - int(re.search(r"continues from epoch-(\d+)", lines[-1])[1]))  # type: ignore[index]
    assert world.stop() == 0
    row.measured(kills=kills, inside_a_save=inside, epochs_lost_at_most=max(regress), adopted_seconds_at_most=max(adopting))
    assert max(regress) <= 0, "a checkpoint that was in the manifest was not the one taken"
    assert max(adopting) <= 5
