from pathlib import Path

import pytest

from deploy.reporting.base import Point
from deploy.reporting.figures import tags
from deploy.reporting.sinks.tensorboard import TensorBoard

ACTOR = {"steps": 50.0, "steps_per_second": 10.0, "episode_return": 3.0, "episode_length": 7.0}
LEARNER = {
    "uptime_seconds": 5.0, "updates": 9.0, "updates_per_second": 2.0, "updates_per_second_60": 2.0, "epoch": 1.0, "loss": 0.5,
    "td": 0.25, "lag_mean": 1.5, "data_wait_fraction": 0.1, "update_fraction": 0.9, "policy_version": 4.0,
}  # fmt: skip
REPLAY = {"items": 40.0, "samples_per_insert": 3.0}


def test_the_tags_are_those_of_the_contract() -> None:
    evaluation = {"return_mean": 8.0, "success_rate": 0.5, "policy_version": 3.0}
    actors = {0: ACTOR | {"success_rate": 0.0}, 1: ACTOR | {"episode_return": 5.0, "success_rate": 1.0}}
    assert tags(actors, REPLAY, LEARNER, evaluation, 100.0) == {
        "rollout/ep_rew_mean": 4.0, "rollout/ep_len_mean": 7.0, "rollout/success_rate": 0.5,
        "time/fps": 20.0, "time/total_timesteps": 100.0, "train/loss": 0.5, "train/td": 0.25,
        "eval/mean_reward": 8.0, "eval/success_rate": 0.5, "actor/0/fps": 10.0, "actor/1/fps": 10.0,
        "replay/size": 40.0, "replay/samples_per_insert": 3.0, "policy/lag_mean": 1.5,
        "learner/updates_per_second": 2.0, "learner/data_wait_fraction": 0.1,
    }  # fmt: skip


def test_what_was_not_measured_is_left_out() -> None:
    assert tags({}, {}, {}, {}, 0.0) == {"time/total_timesteps": 0.0}


def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
    from tensorboard.compat.proto.event_pb2 import Event

    board = TensorBoard(tmp_path)
    board.write(Point(100, 1.0, {"time/fps": 20.0}))
    board.write(Point(200, 1.0, {"time/fps": 30.0, "eval/mean_reward": -1.5}))
    board.close()
    (file,) = (tmp_path / "tensorboard").iterdir()
    events = [Event.FromString(raw) for raw in RawEventFileLoader(str(file)).Load()]
    assert events[0].file_version == "brain.Event:2"
    points = [(event.step, value.tag, value.simple_value) for event in events[1:] for value in event.summary.value]
    assert points == [(100, "time/fps", 20.0), (200, "time/fps", 30.0), (200, "eval/mean_reward", -1.5)]


def test_a_folder_that_cannot_be_made_costs_points_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    board = TensorBoard(tmp_path / "file")
    board.write(Point(1, 1.0, {"time/fps": 1.0}))
    board.close()
