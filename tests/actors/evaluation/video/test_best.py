"""Videos of the best policies of a run."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from actors.config import EvaluatorConfig
from actors.evaluation.video import best
from actors.evaluation.video.best import BestVideos, open_videos
from actors.evaluation.video.kept import read_videos
from actors.settings import read_settings
from learner.weights import checkpoint
from tests.actors.evaluation import test_demo
from tests.actors.evaluation.test_demo import make_run
from transport.run_dir import RunDir

pytestmark = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)  # imageio-ffmpeg's
ENV = f"{test_demo.__name__}:Painted"


def make(run: RunDir, clock: list[float], version: int = 3) -> BestVideos:
    weights, metadata = checkpoint.read(run.latest)
    checkpoint.write(run.best, weights, metadata | {"policy_version": str(version)})
    return BestVideos(read_settings(run), EvaluatorConfig(videos=2), run, 7, lambda: clock[0])


def test_a_video_of_the_best_policy_is_kept_and_a_tenth_of_the_time_is_taken(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run, clock = make_run(tmp_path / "run", ENV), [0.0]
    videos = make(run, clock)
    assert videos.due(3) and not videos.due(-1)
    steps: list[float] = []

    def go_on() -> bool:
        clock[0] += 1.0
        steps.append(clock[0])
        return True

    videos.film(go_on)
    assert len(steps) == 9
    (video,) = read_videos(run)
    assert (video.file, video.policy_version, video.total_reward, video.may_be_published) == ("best-v3.mp4", 3, 9.0, False)
    assert sorted(path.name for path in run.videos.iterdir()) == ["best-v3.mp4", "videos.json"]
    assert not videos.due(3)  # filmed
    assert not videos.due(4)
    clock[0] = 9.0 + 81.0
    assert videos.due(4)
    videos.close()
    assert not make(run, clock).due(3)  # after a restart


def test_an_evaluator_that_stops_keeps_no_part_of_a_video(tmp_path: Path) -> None:
    pytest.importorskip("imageio_ffmpeg")
    run = make_run(tmp_path / "run", ENV)
    run.videos.mkdir()
    (run.videos / ".best-v1.77.mp4").touch()  # of one that was killed
    videos = make(run, [0.0])
    videos.film(lambda: False)
    assert not list(run.videos.iterdir())
    videos.close()


def test_an_episode_without_an_end_makes_a_video_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("imageio_ffmpeg")
    monkeypatch.setattr(best, "MOST_SECONDS", 0.4)  # of 10 pictures a second
    run = make_run(tmp_path / "run", ENV)
    videos = make(run, [0.0])
    videos.film(lambda: True)
    assert [video.total_reward for video in read_videos(run)] == [4.0]
    videos.close()


@pytest.mark.parametrize("env", ["Unseen", "InText", "Painted"])
def test_where_no_video_can_be_made_the_evaluator_says_so_and_goes_on(
    env: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if env == "Painted":
        monkeypatch.setitem(__import__("sys").modules, "imageio_ffmpeg", None)
    run = make_run(tmp_path / "run", f"{test_demo.__name__}:{env}")
    shutil.copyfile(run.latest, run.best)
    said: list[str] = []
    settings = read_settings(run)
    alone = replace(
        settings, process=structs.replace(settings.process, actors=structs.replace(settings.process.actors, envs_per_actor=1))
    )
    for each in (settings, alone):
        assert open_videos(each, EvaluatorConfig(videos=1), run, 7, said.append) is None
    beside = ", which need an environment beside that of evaluations"
    assert [line.partition(": ")[0] for line in said] == ["there will be no videos", f"there will be no videos{beside}"]
