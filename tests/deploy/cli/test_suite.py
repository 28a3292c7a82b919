"""`headrace suite`: mistakes before anything runs, and reports without running."""

import json
from pathlib import Path

import pytest

from deploy.cli.main import main
from deploy.studies.suite import evidence
from deploy.studies.suite.file import order, read

GOOD = """
seeds = 1
[tasks.CartPole-v1]
random = 20
reference = 500
[contestants.headrace]
"""
PEER = """
[contestants.headrace]
kind = "stable-baselines3"
python = "nowhere"
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("seeds = 1", "seeds = -1", "seeds: expected int >= 1, got -1"),
        ("CartPole-v1", "CartPole-v9", "CartPole-v9"),
        ("random = 20", "env.stack = -1\nrandom = 20", "env.stack"),
        ("[contestants.headrace]", "[contestants.headrace]\nsettings.learner.batch_sise = 4", "learner.batch_sise"),
        ("[contestants.headrace]", "[contestants.headrace]\nkind = 'headrase'", "contestants.headrace.kind"),
        ("[contestants.headrace]", "[contestants.headrace]\nsettings.algorithm.name = 'my:Own'", "--trust-config"),
        ("[contestants.headrace]", "[contestants.headrace]\nsettings.algorithm.name = 'sac'", "CartPole-v1 has 2 actions"),
        ("random = 20", "env.wrappers = ['my:wrapped']\nrandom = 20", "--trust-config"),
        ("[contestants.headrace]", PEER, "contestants.headrace.python"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_runs(
    old: str, new: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "mine.toml").write_text(GOOD.replace(old, new, 1))
    assert main(["suite", "mine.toml"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("headrace: ") and words in line
    assert not (folder / "runs").exists() and not list(folder.glob("results/mine/*.json"))


def test_a_file_that_is_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["suite", "none.toml"]) == 2
    assert "cannot read none.toml" in capsys.readouterr().err


def test_a_report_runs_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.toml").write_text(GOOD)
    assert main(["suite", "mine.toml", "--report"]) == 0
    assert "0 of 1 runs are finished" in capsys.readouterr().out
    assert not (folder / "runs").exists()


def test_a_page_needs_its_folder(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.toml").write_text(GOOD)
    assert main(["suite", "mine.toml", "--report", "--out", "none/page.html"]) == 2
    assert "there is no folder none" in capsys.readouterr().err


def test_finished_runs_are_reported_as_table_json_and_page(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "mine.toml").write_text(GOOD)
    (run,) = order(read(folder / "mine.toml"))
    trained = {"training": {"seconds": 9.0, "steps": 5000, "ended": "at the time limit"}, "machine": {}}
    evaluations = [{"seconds": k, "steps": 1000 * k, "episodes": {"return": [500.0], "length": [500]}} for k in range(1, 5)]
    (folder / "results" / "mine").mkdir(parents=True)
    evidence.write(folder / "results" / "mine" / f"{run.name}.json", evidence.document(run, trained, evaluations))
    assert main(["suite", "mine.toml"]) == 0, "there is nothing to run"
    assert "1 of 1" in capsys.readouterr().out
    assert main(["suite", "mine.toml", "--json", "--out", "page.html"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["tasks"][0]["contestants"][0]["seconds_to_score"] == [1]
    assert "<svg" in (folder / "page.html").read_text()
