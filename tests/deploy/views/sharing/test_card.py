"""The card of a policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.evaluation.lines import add_line
from actors.evaluation.video.kept import Video, add_video, read_videos
from deploy.cli import main as cli
from deploy.views.sharing.card import card, make_upload, write_card
from deploy.views.sharing.facts import EVALUATOR, CardFacts, Measured, of_file, of_run
from learner.saving.export import export
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from tests.deploy.views.sharing.exported import make_exported
from transport.run_dir import RunDir


def evaluated(version: int, **figures: Any) -> dict[str, Any]:
    usual = {"episodes": 100, "return_mean": 20.0, "return_std": 5.0, "success_rate": None, "score_mean": 20.0, "score_std": 5.0}
    return usual | {"policy_version": version} | figures


def facts(tmp_path: Path, **changed: Any) -> CardFacts:
    make_exported(tmp_path / "mine.safetensors")
    return of_file(tmp_path / "mine.safetensors")[0]._replace(**changed)


def test_what_the_policy_was_trained_on_and_how_to_load_it_without_any_path_of_this_machine(tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    text = card(of_run(tmp_path / "mine.safetensors", run), "mine.safetensors")
    assert "# dqn on toy" in text and "`mlp`" in text and "| policy version | 9 |" in text and "| seed | 4 |" in text
    assert "These weights have not been evaluated." in text and "model-index" not in text
    assert 'headrace.load("mine.safetensors")' in text.replace("'", '"') and "--learner.weights mine.safetensors" in text
    assert "urdf arm.urdf" in text and "/home/somebody" not in text and str(tmp_path) not in text and "10.1.2.3" not in text


def test_the_measurement_with_most_episodes_of_these_weights_counts(tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    for line in (evaluated(9, episodes=10, return_mean=99.0), evaluated(9), evaluated(8, episodes=1000, return_mean=77.0)):
        add_line(run.evaluated, line)
    text = card(of_run(tmp_path / "mine.safetensors", run), "mine.safetensors")
    assert "| return | 20.0 | 19.0 to 21.0 |" in text and "Measured by `headrace eval` in 100 episodes" in text
    assert "20.00 +/- 5.00" in text and "99.0" not in text and "77.0" not in text and "| score" not in text
    add_line(
        run.evaluated, evaluated(9, episodes=400, return_std=40.0, return_max=20.5, score_mean=7.0, score_std=8.0, score_min=6.9)
    )
    text = card(of_run(tmp_path / "mine.safetensors", run), "mine.safetensors")
    assert "| return | 20.0 | 16.1 to 20.5 |" in text and "| 7.00 | 6.90 to 7.78 |" in text, "no end lies beyond any episode"
    run.evaluated.write_text("[]\n")  # damaged
    assert of_run(tmp_path / "mine.safetensors", run).measured is None


def test_the_evaluation_that_selected_the_weights_is_said_to_be_too_high(tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    weights, metadata = checkpoint.read(run.latest)
    found = evaluated(9, success_rate=0.5, episodes=20)
    checkpoint.write(run.best, weights, metadata | {"evaluation": json.dumps(found)})
    measured = of_run(tmp_path / "mine.safetensors", run).measured
    assert measured is not None and measured.by == EVALUATOR and measured.selected
    text = card(facts(tmp_path, measured=measured), "mine.safetensors")
    assert "so the figures are too high" in text and "| success | 50% | 30% to 70% |" in text


def test_a_single_episode_has_no_interval_and_own_figures_have_one(tmp_path: Path) -> None:
    one = Measured(EVALUATOR, 1, {"return_mean": 5.0, "return_std": 0.0})
    assert "| return | 5.00 | not known |" in card(facts(tmp_path, measured=one), "p")
    alike = Measured(EVALUATOR, 20, {"return_mean": 500.0, "return_std": 0.0})
    assert "| return | 500.0 | none: all episodes were alike |" in card(facts(tmp_path, measured=alike), "p")
    scored = Measured(EVALUATOR, 100, {**one.figures, "score_mean": 300.0, "score_std": 50.0})
    assert "| score, the environment's own figure | 300.0 | 290.2 to 309.8 |" in card(facts(tmp_path, measured=scored), "p")


def test_a_run_of_an_older_version_whose_records_have_no_spread_has_a_card(tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    run.metrics("replay").write_text('{"time": 1, "inserted_steps": 5}\n')
    run.metrics("evaluator").write_text('{"time": 2, "policy_version": 9, "episodes": 20, "return_mean": 5}\n')
    assert "have not been evaluated" in card(of_run(tmp_path / "mine.safetensors", run), "mine.safetensors")


def test_code_of_the_authors_own_is_named_as_such_and_text_cannot_break_the_card(tmp_path: Path) -> None:
    plain = facts(tmp_path)
    config = plain.config | {"env": {"id": "my_pkg:make|<script>\nx"}}
    text = card(plain._replace(config=config, names_code=True), "p", repository="me/x")
    assert "trust=True" in text and "<script>" not in text.partition("---\n\n")[2].replace("--env", "").split("```")[0]
    assert "# dqn on my_pkg:make\\|&lt;script>" in text and "$ hf download me/x p --local-dir ." in text


@pytest.mark.parametrize("may_be_published", [True, False])
def test_a_video_goes_along_only_where_it_may_be_shown(may_be_published: bool, tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    run.videos.mkdir()
    for version in (8, 9):
        (run.videos / f"best-v{version}.mp4").write_bytes(b"film %d" % version)
        add_video(run, Video(f"best-v{version}.mp4", version, 1.0, may_be_published), 3)
    policy, text, film = (tmp_path / name for name in ("mine.safetensors", "mine.md", "mine-video.mp4"))
    assert write_card(policy, text, film, run) == [text, film][: 1 + may_be_published]
    assert film.exists() == may_be_published == ("](mine-video.mp4)" in text.read_text())
    for number, source in enumerate((None, run)):  # the card beside the file, or a new one
        folder = tmp_path / f"out-{number}"
        folder.mkdir()
        sent = make_upload(policy, folder, source, "me/x")
        assert ("replay.mp4" in sent.files) == may_be_published == ("](replay.mp4)" in sent.files["README.md"].read_text())
        assert "mine" not in sent.files["README.md"].read_text()
        if may_be_published:
            assert sent.files["replay.mp4"].read_bytes() == b"film 9"


def test_videos_are_bounded_and_a_list_from_elsewhere_names_no_other_file(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "run")
    run.create()
    run.videos.mkdir()
    for version in range(4):
        (run.videos / f"best-v{version}.mp4").touch()
        add_video(run, Video(f"best-v{version}.mp4", version, 1.0, True), 2)
    assert sorted(path.name for path in run.videos.glob("*.mp4")) == ["best-v2.mp4", "best-v3.mp4"]
    assert [video.policy_version for video in read_videos(run)] == [3, 2]
    add_video(run, Video("../../secret", 9, 1.0, True), 2)
    assert [video.file for video in read_videos(run)] == ["best-v3.mp4"]


def test_a_plain_checkpoint_has_no_card(tmp_path: Path) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    with pytest.raises(CheckpointError, match="not an exported policy"):
        of_file(run.latest)
    export(run, run.latest, tmp_path / "again.safetensors")
    assert "deploy" not in json.loads(checkpoint.read(tmp_path / "again.safetensors")[1]["config"])


def test_a_text_that_is_no_card_is_not_overwritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_exported(tmp_path / "mine.safetensors")
    monkeypatch.setattr("deploy.cli.policies.export.with_weights", lambda parsed: run)
    (tmp_path / "notes.md").write_text("my own notes")
    assert cli.main(["export", "mine", str(tmp_path / "notes.safetensors")]) == 3
    assert "is no card" in capsys.readouterr().err and (tmp_path / "notes.md").read_text() == "my own notes"
    assert not (tmp_path / "notes.safetensors").exists()
    assert cli.main(["export", "mine", str(tmp_path / "notes.md")]) == 2
