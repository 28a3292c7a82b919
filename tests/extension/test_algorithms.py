"""An algorithm of someone else's package: found by its import path, trained through `headrace up`, resumed and evaluated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from deploy.children import ROOT
from headrace import train
from learner.algorithms.base import find_algorithm, make_algorithm, read_algorithm
from learner.algorithms.dqn.acting import BEST_VALUE
from learner.config import LearnerConfig
from learner.inference.module import infer_by
from learner.inference.program import Program
from learner.throughput_line import describe
from learner.updates.runtime import LearnerRuntime
from replay.table.layout import PRIORITY
from tests.extension.test_environments import evaluated, headrace
from tests.learner.examples import CPU, make_batch, make_spec, vector
from transport.experience import read_spec

QR = "stranger.qr:QrDqn"
SMALL = """
--actors 1 --actors.chunk-seconds 0.5 --algorithm.hidden 16 --algorithm.network mlp --algorithm.quantiles 8
--replay.capacity 20_000 --replay.min-size 200 --learner.batch-size 32 --device cpu --run mine --deploy.record-seconds 1
--evaluator.enabled false
""".split()


def test_it_is_found_and_asked_without_torch() -> None:
    code = (
        "import sys\n"
        "from learner.algorithms.base import find_algorithm, make_algorithm, read_algorithm\n"
        f"algorithm = make_algorithm(read_algorithm({{'name': {QR!r}, 'quantiles': 4, 'n_step': 2}}))\n"
        "print(algorithm.config.quantiles, algorithm.config.n_step, 'torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(__file__).parent)])}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("4 2 False\n", "")


def test_its_outputs_become_the_expectiles_of_the_reward() -> None:
    """Of rewards 0 and 1 as likely, below the Huber loss's threshold, the output at level tau is the expectile: tau itself."""
    torch.manual_seed(0)
    options = {"name": QR, "quantiles": 4, "hidden": 32, "n_step": 1, "network": "mlp", "importance_exponent": 0.0}
    algorithm, spec = make_algorithm(read_algorithm(options)), make_spec(vector(), n=2)
    update = algorithm.update(spec, LearnerRuntime(LearnerConfig(batch_size=256, learning_rate=5e-3), CPU))
    for _ in range(300):
        batch = make_batch(spec, 256)
        seen = {name: torch.ones_like(rows) for name, rows in batch.observation.items()}
        reward, ended = torch.randint(2, (256, 1)).float(), torch.ones(256, dtype=torch.bool)
        outcome = update.update(batch._replace(observation=seen, reward=reward, terminated=ended))
    policy = update.modules["policy"]
    with torch.no_grad():
        found = policy.head[:-1](policy.body({name: rows[:1, : spec.stack] for name, rows in seen.items()}))[0]  # type: ignore
    torch.testing.assert_close(found, torch.tensor([0.125, 0.375, 0.625, 0.875]).expand(2, -1), atol=0.05, rtol=0)
    assert outcome.priorities is not None and outcome.priorities.shape == (256,)
    assert {"loss", "td", "q", "spread", "ignored", "epsilon_highest"} <= set(outcome.metrics)
    acting = algorithm.acting(spec, infer_by(policy))
    assert isinstance(infer_by(policy), Program), "its parts are known, so actors need no torch"
    values = acting.act({"vector": np.ones((3, 1, 4), np.float32)}, {}, "greedy").columns[BEST_VALUE]
    np.testing.assert_allclose(values, float(found.mean(1).max()), rtol=1e-4)


def test_it_trains_in_one_process_without_an_edit_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    small: dict[str, Any] = {
        "actors": {"envs_per_actor": 2},
        "replay": {"min_size": 128},
        "learner": {"batch_size": 32, "updates_per_epoch": 2},
        "evaluator": {"enabled": False},
    }
    run = train("CartPole-v1", {"name": QR, "quantiles": 8, "hidden": 16}, serial=True, total_steps=600, device="cpu", **small)
    assert run.status()["learner"]["updates"] > 0 and run.policy().predict(np.zeros(4)) in (0, 1)


@pytest.mark.slow
@pytest.mark.flow
def test_it_trains_through_up_resumes_and_is_evaluated(tmp_path: Path) -> None:
    headrace(tmp_path, "up", "--env", "CartPole-v1", "--algo", QR, *SMALL, "--total-steps", "3000")
    section = tomllib.loads((tmp_path / "runs" / "mine" / "config.toml").read_text())["algorithm"]
    assert (section["name"], section["quantiles"], section["n_step"]) == (QR, 8, 5), "its own option, and that of DQN for vectors"
    records = [json.loads(line) for line in (tmp_path / "runs" / "mine" / "metrics" / "learner.jsonl").read_text().splitlines()]
    line = describe(records[-1], find_algorithm(QR).figures)
    assert " · spread " in line and " · epsilon ladder " in line, "its own figure and DQN's in the learner's line"
    spec = read_spec((tmp_path / "runs" / "mine" / "spec.json").read_bytes())
    assert [column.name for column in spec.extras] == [PRIORITY], "what DQN needs"
    assert "another algorithm.quantiles (8, now 9)" in headrace(tmp_path, "up", *SMALL, "--algorithm.quantiles", "9", status=2)
    done = json.loads((tmp_path / "runs" / "mine" / "status.json").read_text())["steps"]
    resumed = headrace(tmp_path, "up", *SMALL, "--total-steps", str(done + 1_000))
    assert "resuming run mine" in resumed and "continues from epoch-" in resumed
    figures = evaluated(tmp_path, 2)
    assert (figures["algorithm"], figures["episodes"]) == (QR, 2)


@pytest.mark.timeout(900)
def test_its_options_are_flags_with_help_and_a_wrong_one_names_the_nearest(tmp_path: Path, said: Callable[..., str]) -> None:
    told = " ".join(headrace(tmp_path, "up", "--algo", QR, "--help").split())
    assert "quantiles of the return of each action (default: 51)" in told
    refused = said("up", "--env", "CartPole-v1", "--algo", QR, "--algorithm.quantile", "9", status=2)
    assert "--algorithm.quantiles" in refused
    refused = said("up", "--env", "Pendulum-v1", "--algo", QR, status=2)
    assert "has 1 continuous action" in refused and "--algo ppo or reppo or sac" in refused
    assert "stranger.qr has no QrDpn; did you mean QrDqn?" in said("up", "--algo", "stranger.qr:QrDpn", status=2)


@pytest.mark.slow
@pytest.mark.flow
@pytest.mark.timeout(600)
def test_with_the_packages_own_network_it_balances_the_pole_within_three_minutes(tmp_path: Path) -> None:
    """Figures are for two idle cores."""
    options = """
    --algorithm.network tests.extension.networks:normalised --algorithm.network-options.width 128
    --algorithm.quantiles 16 --algorithm.target-update-interval 200 --replay.capacity 100_000 --replay.min-size 1000
    --learner.batch-size 128 --learner.learning-rate 5e-4 --learner.publish-epochs 1 --learner.checkpoint-epochs 25
    --actors.chunk-seconds 1 --stop-after 180s --run mine
    """
    headrace(tmp_path, "up", "--env", "CartPole-v1", "--algo", QR, *options.split(), seconds=400)
    figures = evaluated(tmp_path, 100)
    print(figures)
    assert figures["return_mean"] >= 400
