"""`headrace fsck`: one bit or half of a file is found, whichever file it is, and after the repair the run goes on."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.envs.preflight.parent import PreflightResult
from deploy import runs
from deploy.cli import main as cli
from deploy.launch import preflight
from deploy.launch.sums import write_sums
from learner.weights.checkpoint import Checkpoints
from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.log.segments import segments
from replay.table.ring import Ring
from tests.deploy.cli.test_main import Service, quiet_world, refused
from tests.harness.folder import SPEC, stopped_run
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
Damage = Callable[[bytes], bytes]


def flipped(data: bytes) -> bytes:
    at = len(data) // 2
    return data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]


DAMAGES: dict[str, Damage] = {"one bit": flipped, "half of it": lambda data: data[: len(data) // 2], "all": lambda data: b""}


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    run = stopped_run(tmp_path_factory.mktemp("sound") / "runs" / "q")
    run.curriculum.write_bytes(b'{"level": 1, "levels": 3}')
    write_sums(run)
    return run


@pytest.fixture(autouse=True)
def environment(quiet_world: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "preflight", lambda config, *more: PreflightResult(SPEC, options={}))


def fsck(capsys: pytest.CaptureFixture[str], *more: str) -> tuple[int, list[dict[str, str]], list[dict[str, str]]]:
    status = cli.main(["fsck", "q", "--json", *more])
    said = json.loads(capsys.readouterr().out)
    return status, said["found"], said["left"]


def files_of(run: RunDir) -> list[Path]:
    found = (path.relative_to(run.path) for path in sorted(run.path.rglob("*")) if path.is_file())
    return [path for path in found if not path.name.startswith(".") and path.name != "sums.json"]


def restored(run: RunDir) -> int:
    """The items that replay restores."""
    ring = Ring(SPEC, ReplayConfig(capacity=400, min_size=64), 0)
    Journal(run.segments, ring, ReplayConfig(capacity=400, min_size=64), lambda: False).close(dict)
    return ring.size


@pytest.mark.parametrize("how", ["one bit", *(pytest.param(how, marks=pytest.mark.slow) for how in ("half of it", "all"))])
def test_damage_of_any_file_is_found_and_after_the_repair_the_run_goes_on(
    sound: RunDir, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in files_of(sound):
        shutil.copytree(sound.path, "runs/q")
        run = RunDir(Path("runs/q"))
        data = (run.path / name).read_bytes()
        (run.path / name).write_bytes(DAMAGES[how](data))
        before = {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()}
        status, found, _ = fsck(capsys)
        assert status == 1 and str(name) in [one["file"] for one in found], name
        assert {path: path.read_bytes() for path in run.path.rglob("*") if path.is_file()} == before, "looking writes nothing"
        status, _, left = fsck(capsys, "--repair")
        assert status == 0 and not left, (name, left)
        assert fsck(capsys) == (0, [], []), name
        assert Checkpoints(run.checkpoints, 3).newest(lambda line: None) is not None
        assert restored(run) >= 96 and not list(run.segments.glob("*.aside.*")), name
        assert cli.main(["up", "--run", "q", "--total-steps", "100"]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err
        shutil.rmtree("runs/q")


def test_a_sound_run_is_sound_and_one_that_is_up_is_left_alone(sound: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sound.path, "runs/q")
    assert cli.main(["fsck", "q"]) == 0 and capsys.readouterr().out == "run q is sound\n"
    with runs.locked(RunDir(Path("runs/q"))):
        status, error = refused(capsys, "fsck", "q", "--repair")
    assert status == 3 and "already up" in error


def test_what_cannot_be_repaired_is_said(sound: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sound.path, "runs/q")
    run = RunDir(Path("runs/q"))
    for path in run.checkpoints.glob("epoch-*"):
        path.write_bytes(flipped(path.read_bytes()))
    segments(run.segments)[1].unlink()
    status, error = refused(capsys, "fsck", "q", "--repair")
    assert status == 1 and "the damage above stays" in error
    status, _, left = fsck(capsys, "--repair")
    assert status == 1 and ["no full checkpoint is left" in one["problem"] for one in left] == [True]
    assert not Service.made


def test_a_run_without_its_settings_gets_them_back(sound: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(sound.path, "runs/q")
    run = RunDir(Path("runs/q"))
    before = run.config.read_bytes()
    run.config.unlink()
    assert fsck(capsys, "--repair")[0] == 0 and run.config.read_bytes() == before


def test_a_run_on_other_shards_is_sound_and_their_number_is_found_again(
    sound: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(sound.path, "runs/q")
    run = RunDir(Path("runs/q"))
    assert cli.main(["reshard", "2", "q"]) == 0
    capsys.readouterr()
    assert fsck(capsys) == (0, [], [])
    (run.segments / "shards").unlink()
    status, found, left = fsck(capsys, "--repair")
    assert (status, [one["file"] for one in found], left) == (0, [str(Path("replay/shards"))], [])
    assert (run.segments / "shards").read_text() == "2\n"
