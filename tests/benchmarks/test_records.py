"""Records: a run, its curve and its evaluations in one file, and its policy in the zoo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learning import records
from benchmarks.learning.records import Record
from learner.saving.export import read_exported

SHORT = Record(
    "Short",
    "None is known.",
    "return",
    "--env CartPole-v1 --actors 1 --evaluator.episodes 2",
    "5s",
    (1, 2),
    {"greedy": "--episodes 3", "as it explores": "--episodes 3 --stochastic"},
)


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.timeout(180)
def test_what_is_missing_is_trained_and_the_first_seed_goes_into_the_zoo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, zoo = tmp_path / "records", tmp_path / "zoo"
    zoo.mkdir()
    results.mkdir()
    monkeypatch.setattr(records, "RECORDS", {"short": SHORT})
    monkeypatch.setattr(records, "RESULTS", results)
    monkeypatch.setattr(records, "FOLDER", zoo)
    (results / "short-2.json").write_text("{}")  # that of the other seed is there
    assert records.main([]) == 0
    found = json.loads((results / "short-1.json").read_text())
    assert found["command"].startswith("headrace up --env CartPole-v1 ") and found["command"].endswith(
        " --seed 1 --stop-after 5s"
    )
    assert found["steps"] > 0 and 5 <= found["seconds"] < 120 and found["machine"]["cores"]
    assert found["curve"] and all(0 < point["seconds"] < found["seconds"] for point in found["curve"])
    assert {kind: one["episodes"] for kind, one in found["evaluations"].items()} == {"greedy": 3, "as it explores": 3}
    assert read_exported(zoo / "short.safetensors")[2]["seed"] == 1 and (zoo / "short.md").is_file()
    assert (results / "short-2.json").read_text() == "{}"
    assert records.main(["short"]) == 0, "nothing is left to do"


def test_the_seeds_that_are_there_are_not_trained_again_and_an_unknown_record_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun: list[tuple[str, int]] = []
    monkeypatch.setattr(records, "RECORDS", {"short": SHORT})
    monkeypatch.setattr(records, "RESULTS", tmp_path)
    monkeypatch.setattr(records, "train", lambda name, seed, *_: begun.append((name, seed)))
    (tmp_path / "short-2.json").touch()
    assert records.main([]) == 0 and begun == [("short", 1)]
    with pytest.raises(SystemExit, match="2"):
        records.main(["shirt"])
    assert "there is no record shirt: name some of short" in capsys.readouterr().err
