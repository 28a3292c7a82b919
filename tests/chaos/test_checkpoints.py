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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from learner.weights.checkpoint import CheckpointError, Checkpoints
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


def saving(folder: Path, kills: int, *before: str) -> dict[str, int]:
    """What tests/chaos/saving.py has seen."""
    command = [*before, sys.executable, "-m", "tests.chaos.saving", str(folder), str(kills)]
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


def flip(path: Path, place: int = -9) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 16
    path.write_bytes(data)


@pytest.mark.row("R17", "kill -9 while a checkpoint is written; a damaged one", "always the newest valid one, with a warning")
def test_whatever_happens_to_the_newest_checkpoint_the_newest_sound_one_is_loaded(row: Row, tmp_path: Path) -> None:
    seen = saving(tmp_path / "killed", row.times(6, 200))
    row.measured(**seen)
    assert seen["lost"] == seen["wrong"] == seen["complaints"] == 0
    assert seen["kills"] < 100 or (seen["inside a file"] and seen["not in the manifest"]), "no kill was in the middle"

    harms = {
        "cut": lambda path: path.write_bytes(path.read_bytes()[:-5]),
        "emptied": lambda path: path.write_bytes(b""),
        "a bit flipped": flip,
        "a bit of its metadata flipped": lambda path: flip(path, 20),
        "an older one in its place": lambda path: shutil.copy(path.with_name("epoch-0000000001.safetensors"), path),
    }
    for name, harm, listed in [(name, harm, listed) for name, harm in harms.items() for listed in (True, False)]:
        checkpoints = write_some(tmp_path / f"{name.replace(' ', '-')}-{listed}")
        harm(checkpoints.paths()[0])
        if not listed:  # only the checksum inside is left, which knows nothing of the others
            if "older" in name:
                continue
            (checkpoints.paths()[0].parent / MANIFEST).unlink()
        lines: list[str] = []
        found = checkpoints.newest(lines.append)
        assert found is not None and found[2]["epoch"] == "2" and (found[1]["x"] == 2).all(), name
        assert len(lines) == 1 and "epoch-0000000003" in lines[0] and "\n" not in lines[0], (name, lines)
    row.measured(harms=len(harms))


@pytest.mark.row(
    "R17", "a manifest that is damaged, behind, or hostile", "never stops a run; files then go by the checksum inside"
)
def test_a_manifest_that_says_nothing_true_never_stops_a_run(row: Row, tmp_path: Path) -> None:
    cases = {
        "cut": b'{"files": {"epoch-0000000003',
        "not UTF-8": b"\xff\xfe",
        "nested": b'{"files": ' * 100_000,
        "huge": b" " * (2 << 20),
        "another field": b'{"files": {}, "run": "rm -rf"}',
        "a digest that is none": b'{"files": {"epoch-0000000003.safetensors": {"sha256": "x", "bytes": 1, "policy_version": 1}}}',
        "a size below nothing": b'{"files": {"x": {"sha256": "%s", "bytes": -1, "policy_version": 1}}}' % (b"0" * 64),
        "a pickle": b"\x80\x04\x95cos\nsystem\n(S'true'\ntR.",
    }
    for name, text in cases.items():
        checkpoints = write_some(tmp_path / name.replace(" ", "-"))
        (checkpoints.paths()[0].parent / MANIFEST).write_bytes(text)
        lines: list[str] = []
        found = checkpoints.newest(lines.append)
        assert found is not None and found[2]["epoch"] == "3", name
        assert len(lines) == 1 and lines[0].startswith(MANIFEST) and len(lines[0]) < 300, (name, lines)
        checkpoints.write(4, {"x": np.zeros(3, np.float32)}, {"epoch": "4", "policy_version": "40"})
        assert list(read_manifest(tmp_path / name.replace(" ", "-")) or {}) == ["epoch-0000000004.safetensors"], "begun anew"
    behind = write_some(tmp_path / "behind", 2)
    before = (tmp_path / "behind" / MANIFEST).read_bytes()
    behind.write(3, {"x": np.ones(3, np.float32)}, {"epoch": "3", "policy_version": "30"})
    (tmp_path / "behind" / MANIFEST).write_bytes(before)  # as if it had been killed between the file and the manifest
    lines = []
    found = behind.newest(lines.append)
    assert found is not None and found[2]["epoch"] == "3" and lines and "not in manifest.json yet" in lines[0]
    row.measured(manifests=len(cases) + 1, stopped=0)


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
@pytest.mark.row("R17", "the order in which a checkpoint reaches the disk", "strace shows fsync(file) < rename < fsync(folder)")
def test_a_file_is_on_the_disk_before_its_name_and_its_name_before_anything_is_said_of_it(row: Row, tmp_path: Path) -> None:
    row.times(0, 1)
    trace, folder = tmp_path / "trace", tmp_path / "checkpoints"
    calls = "trace=openat,fsync,fdatasync,rename,renameat,renameat2,unlink"
    before = ("strace", "-f", "-y", "--seccomp-bpf", "-s", "300", "-o", str(trace), "-e", calls)
    try:
        saving(folder, 0, *before)
    except AssertionError as error:
        pytest.skip(f"strace cannot trace here: {str(error)[-100:]}")
    lines = [line for line in trace.read_text().splitlines() if str(folder) in line]

    def after(pattern: str, place: int) -> int:
        found = next((at for at in range(place, len(lines)) if re.search(pattern, lines[at])), None)
        assert found is not None, f"no {pattern} after line {place} of:\n" + "\n".join(lines)
        return found

    orders = place = 0
    for name in (
        "epoch-0000000001.safetensors",
        MANIFEST,
        "latest.safetensors",
        MANIFEST,
        "epoch-0000000002.safetensors",
        MANIFEST,
    ):
        begun = after(rf"openat\(.*/\.{re.escape(name)}\.\d+\.partial.*O_CREAT", place)
        synced = after(rf"fsync\(\d+<.*/\.{re.escape(name)}\.\d+\.partial>\) = 0", begun)
        renamed = after(rf"rename\w*\(.*/\.{re.escape(name)}\.\d+\.partial.*/{re.escape(name)}\"", begun)
        place = after(rf"fsync\(\d+<{re.escape(str(folder))}>\) = 0", renamed)
        assert begun < synced < renamed < place
        orders += 1
    row.measured(orders=orders)


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


@pytest.mark.row("R4", "no checkpoint is left that could be read", "never from scratch: refused with a line that names the fix")
def test_a_run_whose_checkpoints_are_all_damaged_does_not_begin_anew_by_itself(row: Row, tmp_path: Path) -> None:
    checkpoints = write_some(tmp_path)
    for path in checkpoints.paths():
        flip(path)
    lines: list[str] = []
    with pytest.raises(CheckpointError, match="--fresh"):
        checkpoints.newest(lines.append)
    row.measured(told=len(lines))
    assert len(lines) == 3
