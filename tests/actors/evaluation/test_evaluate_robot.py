"""Evaluating a policy of the robot: by tier, at several tolerances, in another simulator, from another file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actors.envs.make import make_env
from actors.envs.spec import experience_spec
from actors.evaluation.evaluate import main
from actors.evaluation.options import EvaluationOptions, to_arguments
from deploy import settings
from deploy.config.algorithm import needs
from deploy.config.files import write_config
from deploy.config.layers import layers, resolve
from learner.algorithms.base import make_algorithm
from learner.weights import checkpoint
from transport.experience import write_spec
from transport.run_dir import RunDir


@pytest.fixture
def run_dir(tmp_path: Path) -> RunDir:
    """A run whose newest weights have learned nothing."""
    config = resolve(layers({"env": {"id": "robot", "backend": "kinematic", "max_episode_steps": 5}}))
    run = RunDir(tmp_path / "mine")
    run.create()
    run.config.write_bytes(write_config(config))
    env = make_env(config.env)
    needed = needs(config, experience_spec(env, config.env, "none"))
    spec = experience_spec(env, config.env, "none", needed)
    run.spec.write_bytes(write_spec(spec))
    settings.write(run, config)
    weights = make_algorithm(config.algorithm).policy(spec).state_dict()
    about = {"policy_version": "3", "algorithm": "ppo", "env": "robot", "spec_digest": spec.digest}
    checkpoint.write(run.latest, weights, about)
    checkpoint.write(run.checkpoints / "older.safetensors", {f"policy/{name}": value for name, value in weights.items()}, about)
    checkpoint.write(run.checkpoints / "strange.safetensors", weights, about | {"spec_digest": "another"})
    return run


def figures(run_dir: RunDir, capsys: pytest.CaptureFixture[str], **more: Any) -> dict:
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=40, json=True, **more))) == 0
    return dict(json.loads(capsys.readouterr().out))


def refused(run_dir: RunDir, capsys: pytest.CaptureFixture[str], **more: Any) -> str:
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=2, **more))) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.startswith("headrace: ") and told.err.count("\n") == 1
    return told.err


def test_success_is_told_by_tier_and_at_each_tolerance_with_intervals(
    run_dir: RunDir, capsys: pytest.CaptureFixture[str]
) -> None:
    found = figures(run_dir, capsys, tolerances=(0.9, 0.01))
    assert set(found["by_tier"]) <= {"easy", "medium", "hard"} and len(found["by_tier"]) > 1
    assert sum(tier["episodes"] for tier in found["by_tier"].values()) == found["episodes"] == 40
    assert found["by_tolerance"]["0.9"]["success_rate"] > found["by_tolerance"]["0.01"]["success_rate"]
    for brief in (*found["by_tier"].values(), *found["by_tolerance"].values()):
        low, high = brief["success_ci95"]
        assert 0 <= low <= brief["success_rate"] <= high <= 1
    assert 0.05 < found["score_mean"] < 2.0, "the distance at the end, in metres"
    assert main(to_arguments(run_dir, EvaluationOptions(episodes=9, tolerances=(0.9,)))) == 0
    assert "0.9 m" in capsys.readouterr().out


def test_another_task_is_one_flag_away_but_not_another_thing_to_see(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(run_dir, capsys, env={"tolerance": 0.9})["success_rate"] > 0.5
    assert set(figures(run_dir, capsys, env={"tier": "easy"})["by_tier"]) == {"easy"}
    assert "the policy was made for" in refused(run_dir, capsys, env={"id": "robot:flat"})


def test_older_weights_of_the_run_can_be_named_others_are_refused(run_dir: RunDir, capsys: pytest.CaptureFixture[str]) -> None:
    older = run_dir.checkpoints / "older.safetensors"
    assert figures(run_dir, capsys, weights=str(older))["policy_version"] == 3
    strange = run_dir.checkpoints / "strange.safetensors"
    assert "strange.safetensors: made for robot" in refused(run_dir, capsys, weights=str(strange))
