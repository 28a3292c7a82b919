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

from benchmarks.peers import stable_baselines3_peer as peer  # noqa: E402

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
def test_a_policy_that_was_written_acts_as_the_one_in_training(
    env: str, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models: list[Any] = []
    build = peer.build

    def kept(*arguments: Any, **options: Any) -> Any:
        models.append(build(*arguments, **options))
        return models[-1]

    monkeypatch.setattr(peer, "build", kept)
    asked = request(env, settings, tmp_path)
    peer.train(asked)
    lines = list(read_lines(tmp_path / "snapshots.jsonl"))
    assert lines[0]["steps"] == 0 and lines[-1]["steps"] >= settings["n_timesteps"]
    assert json.loads((tmp_path / "end.json").read_text())["steps"] == lines[-1]["steps"]

    (model,) = models
    trained = model.get_env()
    seen = np.random.default_rng(0).normal(size=(32, *trained.observation_space.shape)).astype(np.float32)
    as_trained = trained.normalize_obs(seen) if settings.get("normalize") else seen
    load = peer.loader(asked)
    last = load(str(tmp_path / lines[-1]["file"]))(seen)
    np.testing.assert_allclose(last, model.predict(as_trained, deterministic=True)[0], atol=1e-6)
    first, final = (np.load(tmp_path / line["file"], allow_pickle=False) for line in (lines[0], lines[-1]))
    with first, final:
        assert any((first[name] != final[name]).any() for name in first.files), "it has learned"
    assert all(trained.action_space.contains(action) for action in last)


@pytest.mark.parametrize(("algorithm", "batch"), [("dqn", 16), ("ppo", 32)])
def test_its_updates_alone_are_timed(algorithm: str, batch: int, capsys: pytest.CaptureFixture[str]) -> None:
    wish = {"case": "mlp", "images": False, "batch": batch, "actions": 7, "algorithm": algorithm, "device": "cpu", "threads": 1}
    peer.main("update", json.dumps(wish | {"seconds": 0.1, "hidden": 8, "layers": 1, "n_epochs": 1, "minibatches": 2}))
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert found["metric"] == "updates" and found["value"] > 0


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_the_settings_of_the_suites_can_be_run(path: Path) -> None:
    suite = read(path)
    for contestant in suite.contestants:
        if contestant.kind == "stable-baselines3":
            Peer(contestant).check([TaskFacts(task, FACTS) for task in suite.tasks])
