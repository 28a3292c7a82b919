"""One file that holds all it takes to act."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
import tomli_w
import torch

from benchmarks.common.settings import write_settings
from learner.algorithms.dqn.config import DqnConfig
from learner.algorithms.dqn.networks import q_network
from learner.saving.export import load, main
from learner.weights import checkpoint
from learner.weights.checkpoint import CheckpointError
from transport.experience import Categorical, ExperienceSpec, observed, write_spec
from transport.run_dir import RunDir

SPEC = ExperienceSpec((observed("observation", (4,), "<f4"),), Categorical(3), 8, 2, 1)
ALGORITHM = DqnConfig(hidden=16, dueling=False)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path / "mine")
    made.create()
    made.config.write_text(tomli_w.dumps({"seed": 1, "env": {"id": "toy"}, "algorithm": msgspec.to_builtins(ALGORITHM)}))
    made.spec.write_bytes(write_spec(SPEC))
    write_settings(made, {"seed": 1, "env": {"id": "toy"}, "algorithm": msgspec.to_builtins(ALGORITHM)})
    network = q_network(SPEC, ALGORITHM)
    for path, version in ((made.latest, "9"), (made.best, "5")):
        metadata = {"spec_digest": SPEC.digest, "policy_version": version, "env": "toy", "algorithm": "dqn"}
        checkpoint.write(path, dict(network.state_dict()), metadata)
    return made


def test_an_exported_file_acts_as_the_run_does_without_its_folder(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert main([str(run.path), str(run.latest), str(out)]) == 0
    weights = checkpoint.read(run.latest)[0]
    original = q_network(SPEC, ALGORITHM).eval()
    checkpoint.load_into(original, weights)
    run.path.rename(tmp_path / "elsewhere")
    inference, spec, _, metadata = load(out)
    assert spec == SPEC and metadata["policy_version"] == "9" and metadata["run"] == "mine"
    observation = {"observation": torch.randn(5, 2, 4)}
    found, _ = inference({name: rows.numpy() for name, rows in observation.items()}, {})
    np.testing.assert_allclose(found, original(observation).detach(), rtol=1e-5, atol=1e-6)


def test_best_is_exported_on_request(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert main([str(run.path), str(run.best), str(out)]) == 0
    assert load(out).metadata["policy_version"] == "5"


def test_a_plain_checkpoint_is_told_from_an_exported_one(run: RunDir) -> None:
    with pytest.raises(CheckpointError, match="not an exported policy"):
        load(run.latest)


def test_a_file_of_another_format_is_refused_in_one_line(run: RunDir, tmp_path: Path) -> None:
    out = tmp_path / "out.safetensors"
    assert main([str(run.path), str(run.latest), str(out)]) == 0
    weights, metadata = checkpoint.read(out)
    spec, config = msgspec.json.decode(metadata["spec"]), msgspec.json.decode(metadata["config"])
    old_spec = msgspec.json.encode({key: value for key, value in spec.items() if key != "format"}).decode()
    old_config = msgspec.json.encode(config | {"algorithm": config["algorithm"] | {"target_period": 5}}).decode()
    for change in ({"spec": old_spec}, {"config": old_config}):
        checkpoint.write(out, weights, metadata | change)
        with pytest.raises(CheckpointError, match="was exported by another version of Headrace") as caught:
            load(out)
        assert "\n" not in str(caught.value)


def test_where_nothing_can_be_written_one_line_says_so(run: RunDir, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(run.path), str(run.latest), str(tmp_path / "no" / "out.safetensors")]) == 3
    assert "cannot write" in capsys.readouterr().err
