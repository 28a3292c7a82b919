"""No small file decides over a run alone: what it says is also elsewhere, or the run is refused before anything is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from actors.envs.preflight.parent import PreflightResult
from deploy.cli import main as cli
from deploy.launch import preflight
from deploy.launch.resume import steps_done
from learner.serving.publish import announced
from tests.deploy.cli.test_main import Service, quiet_world, refused
from tests.harness.folder import SPEC, stopped_run
from transport.run_dir import RunDir

__all__ = ["quiet_world"]
Damage = Callable[[Path], object]
GONE: tuple[Damage, ...] = (
    Path.unlink,
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(b"\xff" * 400),
    lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
)


@pytest.fixture
def run(quiet_world: None, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    monkeypatch.setattr(preflight, "preflight", lambda config, *more: PreflightResult(SPEC, options={}))
    return stopped_run(Path("runs/q"))


def contents(run: RunDir) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file()}


@pytest.mark.parametrize("damage", GONE)
@pytest.mark.parametrize("elsewhere", ["metrics", "replay's state"])
def test_a_finished_run_stays_finished_without_its_status(
    run: RunDir, damage: Damage, elsewhere: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run.status)
    if elsewhere == "metrics":
        (run.segments / "state.npz").unlink()
    else:
        run.metrics("replay").unlink()
    before, done = contents(run), steps_done(run)
    status, error = refused(capsys, "up", "--run", "q", "--total-steps", "100")
    assert status == 2 and f"has done {done:,} of 100 steps" in error and done >= 156
    assert contents(run) == before and not Service.made


def test_a_run_whose_steps_nothing_tells_is_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    for path in (run.status, run.metrics("replay"), run.segments / "state.npz"):
        path.unlink()
    status, error = refused(capsys, "up", "--run", "q", "--total-steps", "100")
    assert status == 2 and "status.json is lost or damaged, and nothing else tells" in error


@pytest.mark.parametrize("damage", GONE)
def test_without_its_settings_a_run_is_refused_before_anything_is_written(
    run: RunDir, damage: Damage, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(run.config)
    before = contents(run)
    status, error = refused(capsys, "up", "--run", "q")
    assert status == 2 and "config.toml" in error and contents(run) == before and not Service.made


def test_settings_that_lack_a_table_are_refused(run: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    text = run.config.read_text()
    run.config.write_text(text[: text.index("[deploy]")])
    status, error = refused(capsys, "up", "--run", "q")
    assert status == 2 and "config.toml is damaged: it has no deploy." in error


@pytest.mark.parametrize(
    ("content", "version"),
    [
        *((b"3", 3), (b"3\n", 3), (b"1073741824", 2**30), (b"", -1), (b"-7", -1), (b"4294967296", -1), (b"9" * 16, -1)),
        *((b"1e9", -1), (b"\xff\xff", -1), (b"3 4", -1), (b"[" * 99, -1)),
    ],
)
def test_a_version_that_cannot_have_been_announced_is_reported_and_left_out(
    run: RunDir, content: bytes, version: int, capsys: pytest.CaptureFixture[str]
) -> None:
    run.announced.write_bytes(content)
    assert announced(run) == version
    assert ("announced is damaged" in capsys.readouterr().out) == (version == -1)


@pytest.mark.skipif(os.name != "posix", reason="Windows cannot fsync folders")
def test_the_files_of_a_run_are_on_the_disk_before_they_have_their_names(
    quiet_world: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr("os.fsync", lambda file: (calls.append("sync"), fsync(file)))
    monkeypatch.setattr("os.replace", lambda old, new: (calls.append(Path(new).name), replace(old, new)))
    assert cli.main(["up", "--env", "CartPole-v1", "--run", "new"]) == 0, capsys.readouterr().err
    for name in ("config.toml", "spec.json", "spaces.json", "policy.json"):
        at = calls.index(name)
        assert calls[at - 1] == calls[at + 1] == "sync", (name, calls)
