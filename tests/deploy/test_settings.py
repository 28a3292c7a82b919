import math
from pathlib import Path

import msgspec

from actors.config import ActorProcess
from deploy import settings
from deploy.config.files import FLAGS, Layer
from deploy.config.layers import resolve
from deploy.config.run import DeployConfig, RunConfig
from learner.config import LearnerSettings
from replay.config import ReplayConfig, ReplayProcess
from transport.run_dir import RunDir, TransportSettings


def test_each_process_gets_what_is_configured_in_a_file_of_its_own(tmp_path: Path) -> None:
    run = RunDir(tmp_path / "mine")
    flags = {
        "seed": 7,
        "env": {"id": "CartPole-v1"},
        "algorithm": {"name": "dqn", "hidden": 9},
        "actors": {"count": 2, "threads": 3},
        "replay": {"samples_per_insert_high": math.inf},
        "learner": {"learning_rate": 0.5},
        "deploy": {"bind": "127.0.0.1", "files_kept": 4, "record_seconds": 2.0},
    }
    config = resolve([Layer(FLAGS, flags)])
    settings.write(run, config)
    names = {"transport", "replay", "learner", "evaluator", "export", "actor-0", "actor-1"}
    assert {path.stem for path in (run.path / "settings").iterdir()} == names
    assert run.transport == TransportSettings("127.0.0.1", files_kept=4, record_seconds=2.0)
    replay = msgspec.json.decode(run.settings("replay").read_bytes(), type=ReplayProcess)
    assert replay.seed == 7 and replay.replay.samples_per_insert_high > 1e300, "JSON has no infinity"
    learner = msgspec.json.decode(run.settings("learner").read_bytes(), type=LearnerSettings)
    assert (learner.env_id, learner.learner) == ("CartPole-v1", config.learner)
    assert learner.algorithm == config.algorithm.flat() and learner.algorithm["hidden"] == 9
    for name in ("actor-1", "evaluator"):
        acting = msgspec.json.decode(run.settings(name).read_bytes(), type=ActorProcess)
        assert (acting.seed, acting.env["id"]) == (7, "CartPole-v1")
        assert (acting.actors, acting.evaluator) == (config.actors, config.evaluator)


def test_a_run_without_settings_has_the_defaults_of_transport(tmp_path: Path) -> None:
    assert RunDir(tmp_path).transport == TransportSettings()


def test_with_a_first_port_every_server_has_one_of_its_own() -> None:
    config = RunConfig(replay=ReplayConfig(shards=2), deploy=DeployConfig(bind="127.0.0.1", port=7701))
    ports = settings.connections(config).ports
    assert ports == {"supervisor": 7701, "weights": 7702, "payload": 7703, "replay-0": 7704, "replay-1": 7705}
    assert settings.connections(RunConfig()).ports == {}
