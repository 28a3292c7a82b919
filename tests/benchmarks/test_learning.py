"""Stable-Baselines3 as a contestant of `headrace suite`. Skipped where it is not installed."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actors.evaluation.lines import read_lines
from deploy.studies.suite.base import TaskFacts
from deploy.studies.suite.file import read
from deploy.studies.suite.peer import Peer
from tests.harness.waiting import ROOT

pytest.importorskip("stable_baselines3", reason="Stable-Baselines3 is not installed")
pytest.importorskip("Box2D", reason="Box2D is not installed")

from benchmarks.peers.contestant import run  # noqa: E402
from benchmarks.peers.stable_baselines3_peer import Library  # noqa: E402

FACTS: Any = None  # a peer does not look at them
SUITES = sorted((ROOT / "benchmarks" / "learning").glob("classic*.toml"))
PPO = {"algorithm": "ppo", "n_timesteps": 96, "n_envs": 2, "n_steps": 16, "batch_size": 16, "n_epochs": 1}
SAC = {"algorithm": "sac", "n_timesteps": 60, "learning_starts": 10, "buffer_size": 100, "use_sde": True}
CASES = [
    ("CartPole-v1", PPO | {"normalize": True, "clip_range": "lin_0.2"}),
    ("Pendulum-v1", SAC),
    ("CartPole-v1", {"algorithm": "dqn", "n_timesteps": 60, "learning_starts": 10, "policy_kwargs": {"net_arch": [8]}}),
]


def request(env: str, settings: dict[str, Any], folder: Path) -> dict[str, Any]:
    limits = {"began": 0.0, "seconds": float("inf"), "total_steps": 0, "snapshot_seconds": 0.0}
    return {"env": {"id": env}, "settings": settings, "seed": 3, "threads": 1, "folder": str(folder), **limits}


@pytest.mark.parametrize(("env", "settings"), CASES, ids=lambda value: value["algorithm"] if isinstance(value, dict) else value)
def test_a_policy_that_was_written_acts_as_the_one_in_training(env: str, settings: dict[str, Any], tmp_path: Path) -> None:
    models: list[Any] = []

    class Kept(Library):
        def build(self, request: dict[str, Any], training: bool = True) -> Any:
            models.append(super().build(request, training))
            return models[-1]

    asked, file = request(env, settings, tmp_path), tmp_path / "peer.json"
    file.write_text(json.dumps(asked))
    run(Kept().contestant(), "train", str(file))
    lines = list(read_lines(tmp_path / "snapshots.jsonl"))
    assert lines[0]["steps"] == 0 and lines[-1]["steps"] >= settings["n_timesteps"]
    assert json.loads((tmp_path / "end.json").read_text())["steps"] == lines[-1]["steps"]

    (model,) = models
    trained = model.get_env()
    seen = np.random.default_rng(0).normal(size=(32, *trained.observation_space.shape)).astype(np.float32)
    as_trained = trained.normalize_obs(seen) if settings.get("normalize") else seen
    load = Library().load(asked)
    last = load(str(tmp_path / lines[-1]["file"]))(seen)
    np.testing.assert_allclose(last, model.predict(as_trained, deterministic=True)[0], atol=1e-6)
    first, final = (np.load(tmp_path / line["file"], allow_pickle=False) for line in (lines[0], lines[-1]))
    with first, final:
        assert any((first[name] != final[name]).any() for name in first.files), "it has learned"
    assert all(trained.action_space.contains(action) for action in last)


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_settings_of_the_suites_can_be_run(path: Path) -> None:
    suite = read(path)
    for contestant in suite.contestants:
        if contestant.kind == "stable-baselines3":
            Peer(contestant).check([TaskFacts(task, FACTS) for task in suite.tasks])
