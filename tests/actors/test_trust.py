"""An actor that is started by hand imports what its settings name only in one's own run, or where the user says so."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from actors.__main__ import main
from actors.settings import check_trusted
from actors.trust import OPEN_SECTIONS
from deploy import settings
from deploy.config import trust
from deploy.config.run import RunConfig
from tests.deploy.config.test_trust import CODE, SPEC
from transport.experience import write_spec
from transport.run_dir import RunDir

KEYS = [key for key in CODE if key.partition(".")[0] in OPEN_SECTIONS]
Tree = dict[str, dict[str, object]]


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """The folder of actor-100 with the default settings, beside a module that leaves a trace where it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "hostile", raising=False)
    (tmp_path / "hostile.py").write_text("import pathlib\npathlib.Path('canary').touch()\n")
    run = RunDir(tmp_path / "worker")
    run.create()
    run.spec.write_bytes(write_spec(SPEC))
    settings.write_acting(run, RunConfig(), "actor-100")
    return run


def name_code(run: RunDir, key: str) -> Tree:
    """Writes settings in which `key` names code, and gives them."""
    path = run.settings("actor-100")
    values: Tree = msgspec.json.decode(path.read_bytes())
    section, name = key.split(".")
    values[section][name] = CODE[key]
    path.write_bytes(msgspec.json.encode(values))
    return {section: values[section] for section in OPEN_SECTIONS}


def start(monkeypatch: pytest.MonkeyPatch, run: RunDir, *flags: str) -> int:
    monkeypatch.setattr(sys, "argv", ["actors", str(run.path), "--actor", "100", *flags])
    return main()


def test_the_defaults_name_no_code(worker: RunDir) -> None:
    check_trusted(worker, 100)


@pytest.mark.parametrize("key", KEYS)
def test_settings_from_elsewhere_cannot_name_code(
    key: str, worker: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name_code(worker, key)
    assert start(monkeypatch, worker) == 2
    told = capsys.readouterr().out
    assert f"{key} = hostile:Thing names code" in told and "--trust-config" in told and told.count("\n") == 1
    assert not Path("canary").exists()


@pytest.mark.parametrize("own", [True, False], ids=["own run", "flag"])
def test_what_is_ones_own_or_trusted_is_imported(
    own: bool, worker: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = name_code(worker, "algorithm.name")
    if own:
        trust.mark(worker, values)
    assert start(monkeypatch, worker, *([] if own else ["--trust-config"])) == 2
    assert "hostile has no Thing" in capsys.readouterr().out and Path("canary").exists()


def test_settings_that_were_changed_after_the_run_was_made_are_not_its_own(
    worker: RunDir, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trust.mark(worker, name_code(worker, "env.id"))
    name_code(worker, "env.wrappers")
    assert start(monkeypatch, worker) == 2
    assert "env.wrappers = hostile:Thing names code" in capsys.readouterr().out and not Path("canary").exists()
