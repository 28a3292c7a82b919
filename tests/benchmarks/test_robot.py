"""`headrace bench robot` and `success`: the arithmetic of their figures, and what they read; no training."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actors.envs.make import make_env
from benchmarks.common.report import Report
from benchmarks.peers import saved_mlp
from benchmarks.robot import __main__ as robot
from benchmarks.robot import success
from benchmarks.robot.runs import Act, HeadraceTraining, Judge, Kept, Training, first_time, rate, settings_of, spec_of, train
from deploy import settings
from deploy.config.files import merge, write_config
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from learner.algorithms.base import make_algorithm
from learner.weights.checkpoint import write
from transport.run_dir import RunDir

KINEMATIC = {"env": {"backend": "kinematic"}}


def kept(*found: tuple[float, int]) -> list[Kept]:
    """Policies that "act" by giving their own number."""

    def giving(number: int) -> Act:
        return lambda _: np.array(number)

    return [Kept(seconds, steps, giving(number)) for number, (seconds, steps) in enumerate(found)]


def number(one: Kept) -> int:
    return int(one.act(np.zeros(0)))


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve(layers(merge(robot.TASK, KINEMATIC)))


@pytest.mark.parametrize(
    ("rates", "first"),
    [
        ([0.1, 0.95, 0.5, 0.9, 0.92, 0.1], 3),
        ([0.9, 0.9], 0),
        ([0.0, 0.95, 0.0, 0.95], None),
        ([0.0, 0.899, 0.899], None),
        ([1.0], None),
        ([], None),
    ],
)
def test_the_time_is_that_of_the_first_of_two_policies_in_a_row(rates: list[float], first: int | None) -> None:
    policies = kept(*((10.0 * k, 100 * k) for k in range(len(rates))))
    found = first_time(policies, lambda act: rates[int(act(np.zeros(0)))], 0.9)
    assert (None if found is None else number(found)) == first


def test_no_policy_is_looked_at_after_the_second_in_a_row() -> None:
    looked: list[int] = []

    def success_rate(act: object) -> float:
        looked.append(int(act(np.zeros(0))))  # type: ignore[operator]
        return 1.0

    first_time(kept(*((float(k), k) for k in range(9))), success_rate, 0.9)
    assert looked == [0, 1]


def test_a_rate_is_counted_from_the_first_policy_after_the_warm_up_to_the_last() -> None:
    policies = kept((5.0, 1_000), (9.0, 1_500), (15.0, 9_000), (20.0, 19_000), (25.0, 29_000))
    assert rate(policies, 10.0) == pytest.approx((29_000 - 9_000) / 10.0)
    with pytest.raises(ValueError, match="give --seconds more"):
        rate(policies[:3], 10.0)


def test_a_policy_written_acts_the_same_when_read(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    layers_ = [(random.normal(size=(8, 4)), random.normal(size=8)), (random.normal(size=(2, 8)), random.normal(size=2))]
    saved = saved_mlp.Saved(random.normal(size=4), random.random(4) + 0.1, layers_, 4096, 0.25)
    saved.write(tmp_path / "step.npz")
    again = saved_mlp.load(tmp_path / "step.npz")
    assert (again.steps, again.success) == (4096, 0.25) and not list(tmp_path.glob("*.part"))
    seen = 3 * random.normal(size=(5, 4)) + saved.mean
    (first, bias), (second, offset) = layers_
    scaled = np.clip((seen - saved.mean) / np.sqrt(saved.variance + 1e-8), -10, 10)
    expected = np.clip(np.tanh(scaled @ first.T + bias) @ second.T + offset, -1, 1)
    np.testing.assert_allclose(again.act(seen), expected)


class Folder(HeadraceTraining):
    """A run's folder without its processes; `end` writes once more, as a learner does that is asked to stop."""

    def __init__(self, run: RunDir, late: Path) -> None:
        self.run, self.begun, self._late = run, 1_000.0, late

    def ended(self) -> bool:
        return False

    def end(self) -> None:
        os.utime(self._late, (9_000, 9_000))


def test_checkpoints_are_read_with_their_times_and_steps_and_act_as_their_policy(tmp_path: Path, config: RunConfig) -> None:
    run, spec = RunDir(tmp_path / "run"), spec_of(config)
    run.create()
    run.config.write_bytes(write_config(config))
    settings.write(run, config)
    for epoch, seconds in ((2, 1_012.5), (4, 1_020.0)):
        network = make_algorithm(config.algorithm).policy(spec)
        with torch.no_grad():
            network.head[0].bias.fill_(epoch / 10)  # type: ignore[index, union-attr]
            network.head[0].weight.zero_()  # type: ignore[index, union-attr]
        tensors = {f"policy/{name}": value for name, value in network.state_dict().items()} | {"random/cpu": torch.zeros(1)}
        path = run.checkpoints / f"epoch-{epoch:010d}.safetensors"
        write(path, tensors, {"progress": json.dumps({"steps": 4000 * epoch, "updates": 1})})
        os.utime(path, (seconds, seconds))
    asked: list[int] = []

    def enough(training: Training) -> bool:
        asked.append(len(training.files()))
        return True

    found = train(Folder(run, path), enough)
    assert asked == [2]
    assert [(one.seconds, one.steps) for one in found] == [(12.5, 8_000), (20.0, 16_000)], "what is written at the end is no news"
    seen = np.zeros((3, *spec.fields[0].shape), np.float32)
    for one, epoch in zip(found, (2, 4), strict=True):
        np.testing.assert_allclose(one.act(seen), np.tanh(np.full((3, 6), epoch / 10)), rtol=1e-5)


def test_every_policy_plays_the_same_episodes_and_a_hopeless_one_few_of_them(config: RunConfig) -> None:
    judge = Judge(config, episodes=20, arms=4)
    played: list[list[np.ndarray]] = []

    def still(observation: np.ndarray) -> np.ndarray:
        played[-1].append(observation.copy())
        return np.zeros((len(observation), 6))

    for least in (0.0, 0.0, 0.9):
        played.append([])
        assert judge.success_rate(still, least) < 0.5
    assert np.array_equal(played[0], played[1])
    assert len(played[2]) < len(played[0])


def test_the_peer_is_asked_for_what_headrace_does(config: RunConfig) -> None:
    found, algorithm = settings_of(config), config.algorithm.options
    assert found["minibatch"] * algorithm.minibatches == config.learner.batch_size  # type: ignore[union-attr]
    assert found["hidden"] == algorithm.hidden and found["gamma"] == algorithm.gamma and found["tolerance"] == 0.05
    assert config.learner.batch_size % robot.ENVS == 0
    assert algorithm.target_kl == 0 and algorithm.adaptive_kl == 0 and not config.env.options.curriculum  # type: ignore[union-attr]
    assert make_env(config.env).observation_space.shape == (36,)


def test_the_grid_changes_what_the_peer_reads_and_its_minibatches_divide_its_rollouts(config: RunConfig) -> None:
    for entry in robot.GRID:
        settings = robot.grid_settings(entry)
        assert settings.keys() <= settings_of(config).keys() | {"n_steps"}
        assert robot.ENVS * settings["n_steps"] % settings["minibatch"] == 0
    assert len(set(robot.GRID)) == len(robot.GRID) <= 6


class Canned(robot.Bench):
    """Says at once what was found, by what each training is asked for."""

    def __init__(self) -> None:
        pass

    def other(self, settings: dict[str, object], seed: int, seconds: float) -> tuple[str, int]:  # type: ignore[override]
        return str(settings.get("n_steps", "same")) + f"/{settings.get('n_epochs')}/{settings.get('learning_rate')}", seed

    def headrace(self, seed: int, seconds: float) -> tuple[str, int]:  # type: ignore[override]
        return "headrace", seed

    def time(self, begin: Callable[[float], object], limit: float) -> robot.Reached:
        asked: Any = begin(limit)
        who, seed = asked
        seconds = {"headrace": 20.0, "same/None/None": 90.0, "512/10/0.001": 60.0}.get(who)
        return robot.Reached(limit, 7, False) if seconds is None else robot.Reached(seconds + seed, 1000 * seed, True)


def test_the_better_of_the_peers_settings_is_found_and_what_is_not_reached_is_told() -> None:
    report, theirs = Report("robot"), list[dict[str, Any]]()
    robot.measure_time(Canned(), 3, 300.0, report, theirs)
    assert {(one["peer"], one["value"]) for one in report.ratios} == {
        ("stable_baselines3, same settings", 22 / 92),
        ("stable_baselines3, its best settings", 22 / 62),
    }
    told = {(one["case"], one["metric"]): one["runs"] for one in theirs}
    assert told["time, its best: lr 0.001, n_steps 512, 10 passes of 512", "to 90 %"] == [61, 62, 63]
    assert sum("not reached" in note for note in report.notes) == len(robot.GRID) - 1


def test_where_none_of_the_peers_settings_reaches_the_score_the_report_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    report = Report("robot")
    monkeypatch.setattr(robot, "GRID", [entry for entry in robot.GRID if entry[1] != 512])
    robot.measure_time(Canned(), 1, 300.0, report, [])
    assert any(note.startswith("no setting of stable_baselines3 reached 90%") for note in report.notes)


def test_the_drop_is_what_is_lost_in_the_other_backend_seed_by_seed() -> None:
    def told(rate: float) -> success.Figures:
        brief = {"success_rate": rate, "score_mean": 0.02}
        return brief | {"by_tier": {"easy": brief, "hard": brief}}

    report = Report("success")
    success.add(
        report,
        {("kinematic", "kinematic", 0.02): [told(0.98), told(0.97)], ("kinematic", "pybullet", 0.02): [told(0.97), told(0.93)]},
    )
    found = {(one["case"], one["metric"]): one["runs"] for one in report.results}
    assert found["kinematic, evaluated in pybullet, 0.02 m", "drop"] == pytest.approx([1.0, 4.0])
    assert found["kinematic, evaluated in kinematic, 0.02 m", "success, hard"] == pytest.approx([98.0, 97.0])
    assert found["kinematic, evaluated in kinematic, 0.02 m", "distance at the end"] == pytest.approx([20.0, 20.0])


@pytest.mark.parametrize("given", [[], ["--peer-python", "x", "--cases", "rate,nothing"], ["--peer-python", "x", "--limit", "0"]])
def test_a_mistake_on_the_command_line_costs_one_line(given: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        robot.main(given)
    assert ended.value.code == 2
    assert "error: " in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.skipif(find_spec("stable_baselines3") is not None, reason="Stable-Baselines3 is installed here")
def test_a_peer_that_is_not_there_is_told_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert robot.main(["--peer-python", sys.executable]) == 2
    assert "has no stable_baselines3; benchmarks/README.md says how to install it" in capsys.readouterr().err


@pytest.mark.parametrize(("given", "named"), [(["--env.tolerence", "1"], "--env.tolerance"), (["--seeds", "0"], "--seeds")])
def test_success_tells_a_mistake_in_one_line(given: list[str], named: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert success.main(given) == 2
    said = capsys.readouterr().err
    assert said.startswith("headrace bench success: ") and named in said and said.count("\n") == 1
