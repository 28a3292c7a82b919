"""What `headrace up` says of mirrors: a lost run is not begun anew in silence, and no mirror of another run is overwritten."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from deploy.config.run import DeployConfig, RunConfig
from deploy.errors import ConfigError, Refused
from deploy.launch.mirror import check as mirror
from deploy.launch.mirror.copier import Copier
from deploy.launch.mirror.note import read_note
from tests.deploy.launch.mirror.test_copier import STATUS
from transport.run_dir import RunDir

CONFIG = RunConfig(deploy=DeployConfig(mirror="disk"))


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run with a mirror of step 500."""
    monkeypatch.chdir(tmp_path)
    Path("disk").mkdir()
    run = RunDir(Path("runs/night"))
    mirror.check(run, CONFIG, resumed=False, fresh=False)
    run.create()
    run.config.write_text("")
    run.status.write_text(json.dumps(STATUS | {"evaluation": {}, "steps": 500}))
    assert mirror.begin(run, CONFIG, fresh=False) is None
    Copier(run, Path("disk/night"), lambda: None).turn()
    return run


def test_a_run_goes_on_with_its_mirror(run: RunDir) -> None:
    own = read_note(run.path)
    mirror.check(run, CONFIG, resumed=True, fresh=False)
    assert mirror.notice(run) == "" and mirror.begin(run, CONFIG, fresh=False) is None
    assert own is not None and read_note(run.path) == own and not own.copied


def test_a_lost_run_is_brought_back_by_the_command_that_is_said_and_says_what_is_lost(run: RunDir) -> None:
    shutil.rmtree(run.path)
    command = r"`(cp -a|xcopy /e /i /h) disk[/\\]night runs[/\\]night`"
    with pytest.raises(Refused, match=rf"a mirror of step 500, made on .*: bring it back with {command}"):
        mirror.check(run, CONFIG, resumed=False, fresh=False)
    shutil.copytree("disk/night", run.path)
    mirror.check(run, CONFIG, resumed=True, fresh=False)
    assert "copy of its mirror of step 500" in mirror.notice(run) and "is lost" in mirror.notice(run)
    mirror.begin(run, CONFIG, fresh=False)
    assert mirror.notice(run) == "", "it is said once"
    Copier(run, Path("disk/night"), lambda: None).turn()


def test_nothing_is_lost_where_the_run_had_stopped(run: RunDir) -> None:
    Copier(run, Path("disk/night"), lambda: None).turn(sealed=True)
    shutil.rmtree(run.path)
    shutil.copytree("disk/night", run.path)
    assert "copied when the run had stopped" in mirror.notice(run) and "lost" not in mirror.notice(run)


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_a_mirror_of_another_user_is_refused(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    own = os.getuid()
    monkeypatch.setattr(os, "getuid", lambda: own + 1)
    with pytest.raises(ConfigError, match="belongs to another user"):
        mirror.check(run, CONFIG, resumed=True, fresh=False)


def test_a_run_that_is_brought_back_without_a_mirror_says_so_once(run: RunDir) -> None:
    shutil.rmtree(run.path)
    shutil.copytree("disk/night", run.path)
    mirror.begin(run, RunConfig(), fresh=False)
    assert mirror.notice(run) == ""


def test_a_mirror_whose_first_pass_was_cut_short_is_known(run: RunDir) -> None:
    def ending() -> None:
        raise OSError("the machine is lost")

    shutil.rmtree("disk/night")
    with pytest.raises(OSError, match="lost"):
        Copier(run, Path("disk/night"), ending).turn()
    assert any(Path("disk/night").iterdir())
    mirror.check(run, CONFIG, resumed=True, fresh=False)
    with pytest.raises(Refused, match="but a mirror that is not complete: bring it back with"):
        mirror.check(run, CONFIG, resumed=False, fresh=False)
    Copier(run, Path("disk/night"), lambda: None).turn()
    note = read_note(Path("disk/night"))
    assert note is not None and note.copied and note.steps == 500
    Path("disk/night/mirror.json").unlink()
    Copier(run, Path("disk/night"), lambda: None).turn()
    assert (note := read_note(Path("disk/night"))) is not None and note.steps == 500, "although there was nothing to copy"


def test_a_fresh_run_moves_the_mirror_of_the_one_before_aside(run: RunDir) -> None:
    for number in (1, 2):
        shutil.rmtree(run.path)
        run.create()
        mirror.check(run, CONFIG, resumed=False, fresh=True)
        assert mirror.begin(run, CONFIG, fresh=True) == Path(f"disk/night.{number}")
        run.config.write_text("")
        Copier(run, Path("disk/night"), lambda: None).turn()
    assert {path.name for path in Path("disk").iterdir()} == {"night", "night.1", "night.2"}


def test_the_mirror_of_another_run_of_this_name_is_not_overwritten(run: RunDir) -> None:
    shutil.rmtree(run.path)
    run.create()
    run.config.write_text("")
    with pytest.raises(Refused, match="mirror of another run of this name"):
        mirror.check(run, CONFIG, resumed=True, fresh=False)


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("nowhere", "there is no folder nowhere"),
        ("~nobody-of-this-name/disk", "there is no folder ~nobody-of-this-name/disk"),
        ("runs", "part of the run's own folder"),
        ("full", "holds something that is no mirror"),
    ],
)
def test_folders_that_cannot_hold_a_mirror_are_refused(run: RunDir, folder: str, said: str) -> None:
    Path("full/night").mkdir(parents=True)
    Path("full/night/thesis.tex").write_text("")
    with pytest.raises(ConfigError, match=said):
        mirror.check(run, RunConfig(deploy=DeployConfig(mirror=folder)), resumed=True, fresh=False)
