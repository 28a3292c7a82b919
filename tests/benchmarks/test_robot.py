"""`headrace bench robot` and `success`: the arithmetic of their figures, and what they read; no training."""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.robot import __main__ as robot
from benchmarks.robot.runs import HeadraceTraining, Training, spec_of, train
from deploy import settings
from deploy.config.files import merge, write_config
from deploy.config.layers import layers, resolve
from deploy.config.run import RunConfig
from learner.algorithms.base import make_algorithm
from learner.weights.checkpoint import write
from transport.run_dir import RunDir

KINEMATIC = {"env": {"backend": "kinematic"}}


@pytest.fixture(scope="module")
def config() -> RunConfig:
    return resolve(layers(merge(robot.TASK, KINEMATIC)))


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
