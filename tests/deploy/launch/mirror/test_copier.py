"""What is copied to a mirror and when, what is taken away there, and what is never touched."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from deploy.launch.mirror import copier
from deploy.launch.mirror.copier import Copier, MirrorError
from deploy.launch.mirror.note import MirrorNote, read_note, write_note
from transport.run_dir import RunDir

STATUS = {"run": "night", "state": "running", "env": "Snake", "algorithm": "dqn", "processes": [], "replay": {}, "learner": {}}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    """A run's folder with two segments, of which one is sealed."""
    run = RunDir(tmp_path / "runs" / "night")
    run.create()
    write_note(run.path, MirrorNote("a" * 32))
    (tmp_path / "disk").mkdir()
    files = {
        **{
            "config.toml": "seed = 1",
            "spec.json": "{}",
            "status.json": json.dumps(STATUS | {"evaluation": {}, "steps": 700}),
            "metrics/learner.jsonl": "{}",
        },
        **{
            "replay/0000.segment": "sealed",
            "replay/0007.segment": "open",
            "replay/run_id": "1",
            "replay/state.npz": "priorities",
        },
        **{
            "checkpoints/epoch-1.safetensors": "weights",
            "checkpoints/latest.safetensors": "policy",
            "checkpoints/announced": "3",
        },
        **{"checkpoints/manifest.json": "{}", "keys/learner.secret": "secret", "logs/learner.log": "line"},
    }
    for name, text in files.items():
        path = run.path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    return run


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "disk" / "night"


def make(run: RunDir, target: Path, beat: Callable[[], object] = lambda: None) -> Copier:
    return Copier(run, target, beat)


def names(target: Path) -> set[str]:
    return {path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()}


COPIED = {
    *("config.toml", "spec.json", "status.json", "mirror.json", "replay/0000.segment", "replay/run_id", "replay/state.npz"),
    *("checkpoints/epoch-1.safetensors", "checkpoints/latest.safetensors", "checkpoints/announced"),
}


def test_what_the_run_needs_is_copied_and_neither_keys_nor_what_is_being_written(run: RunDir, target: Path) -> None:
    assert make(run, target).turn() == sum((run.path / name).stat().st_size for name in COPIED - {"mirror.json"})
    assert names(target) == COPIED and (target / "replay/0000.segment").read_text() == "sealed"
    note = read_note(target)
    assert note is not None and note.id == "a" * 32 and note.steps == 700 and note.copied > 0
    assert not os.name == "posix" or target.stat().st_mode & 0o077 == 0


def test_the_newest_segment_is_copied_when_another_one_has_begun_or_replay_has_ended(run: RunDir, target: Path) -> None:
    mirror = make(run, target)
    mirror.turn()
    (run.path / "replay/0009.segment").write_text("open now")
    mirror.turn()
    assert (target / "replay/0007.segment").read_text() == "open" and not (target / "replay/0009.segment").exists()
    mirror.turn(sealed=True)
    assert (target / "replay/0009.segment").read_text() == "open now"


def test_shards_have_an_open_segment_each(run: RunDir, target: Path) -> None:
    for shard in ("0-of-2", "1-of-2"):
        (run.segments / shard).mkdir()
        for key in ("0000", "0001"):
            (run.segments / shard / f"{key}.segment").write_text(shard)
    (run.segments / "shards").write_text("2\n")
    make(run, target).turn()
    copied = {name for name in names(target) if "-of-2" in name or name.endswith("shards")}
    assert copied == {"replay/0-of-2/0000.segment", "replay/1-of-2/0000.segment", "replay/shards"}


def test_only_what_has_changed_is_copied_also_by_another_process(run: RunDir, target: Path) -> None:
    make(run, target).turn()
    again = make(run, target)
    assert again.turn() == 0
    (run.path / "checkpoints/latest.safetensors").write_text("a newer policy")
    assert again.turn() == len("a newer policy") and (target / "checkpoints/latest.safetensors").read_text() == "a newer policy"


def test_what_the_run_has_deleted_is_deleted_after_the_rest_was_copied(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = make(run, target)
    mirror.turn()
    (run.path / "replay/0000.segment").unlink()
    (run.path / "replay/0009.segment").write_text("open now")
    seen = []
    monkeypatch.setattr(mirror, "_beat", lambda: seen.append((target / "replay/0000.segment").exists()))
    mirror.turn()
    assert seen and all(seen) and {name for name in names(target) if "segment" in name} == {"replay/0007.segment"}


@pytest.mark.parametrize("loss", ["deleted", "emptied", "replaced"])
def test_a_lost_run_takes_nothing_of_its_mirror_with_it(run: RunDir, target: Path, loss: str) -> None:
    mirror = make(run, target)
    mirror.turn()
    before = names(target)
    shutil.rmtree(run.path)
    if loss == "emptied":
        run.path.mkdir()
    if loss == "replaced":
        run.create()
        run.config.write_text("seed = 2")
    with pytest.raises(MirrorError, match="is gone; its mirror .* stays as it is"):
        mirror.turn(sealed=True)
    assert names(target) == before == COPIED


def test_the_mirror_of_another_run_is_not_touched(run: RunDir, target: Path) -> None:
    make(run, target).turn()
    write_note(target, MirrorNote("b" * 32, 1.0, 5))
    (run.path / "replay/0000.segment").unlink()
    with pytest.raises(MirrorError, match="another run"):
        make(run, target).turn()
    assert (target / "replay/0000.segment").exists()


def test_a_lost_mirror_is_made_again_and_a_missing_disk_is_an_error(run: RunDir, target: Path) -> None:
    mirror = make(run, target)
    mirror.turn()
    shutil.rmtree(target)
    mirror.turn()
    assert names(target) == COPIED
    shutil.rmtree(target.parent)
    with pytest.raises(MirrorError, match="is gone"):
        mirror.turn()
    assert not target.parent.exists(), "where a disk was mounted nothing is made"


def test_a_file_that_is_being_copied_is_never_seen_in_part_and_each_piece_is_a_sign_of_life(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "PIECE_BYTES", 2)
    found: list[bool] = []
    make(run, target, lambda: found.append(not (target / "config.toml").exists())).turn()
    assert found[:4] == [True] * 4, "a file of eight bytes, in four pieces"
    assert len(found) > 20 and not list(target.rglob("*.partial"))


def test_a_pass_that_ends_early_has_the_checkpoints_and_no_segment_without_the_id_of_its_run(run: RunDir, target: Path) -> None:
    def ending() -> None:
        if (target / "replay/0000.segment").exists():
            raise OSError("the machine is lost")

    with pytest.raises(OSError, match="lost"):
        make(run, target, ending).turn()
    assert (target / "replay/run_id").read_text() == "1"
    assert (target / "checkpoints/latest.safetensors").read_text() == "policy"


def test_what_a_copier_that_was_killed_has_left_does_not_fill_the_disk(run: RunDir, target: Path) -> None:
    make(run, target).turn()
    for name in ("replay/.0007.segment.123.partial", "checkpoints/.latest.safetensors.124.partial"):
        (target / name).write_text("a part")
    make(run, target).turn()
    assert names(target) == COPIED


def test_a_full_disk_has_room_again_when_the_run_has_evicted_a_segment(
    run: RunDir, target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mirror = make(run, target)
    mirror.turn()
    for name in ("replay/0000.segment", "checkpoints/epoch-1.safetensors"):
        (run.path / name).unlink()
    (run.path / "replay/0009.segment").write_text("open now")
    (run.path / "checkpoints/epoch-2.safetensors").write_text("weights")
    copy = mirror._copy

    def full(name: str) -> int:
        if name.endswith(".segment") and (target / "replay/0000.segment").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return copy(name)

    monkeypatch.setattr(mirror, "_copy", full)
    with pytest.raises(OSError, match="No space left"):
        mirror.turn()
    assert (target / "checkpoints/epoch-1.safetensors").exists(), "until there is a newer one"
    mirror.turn()
    assert {name for name in names(target) if "segment" in name or "epoch" in name} == {
        "replay/0007.segment",
        "checkpoints/epoch-2.safetensors",
    }


def test_links_and_folders_are_not_copied(run: RunDir, target: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (run.checkpoints / "other.safetensors").symlink_to(tmp_path / "secret")
    (run.path / "replay/0001.segment").mkdir()
    make(run, target).turn()
    assert names(target) == COPIED
