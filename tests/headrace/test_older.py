"""Policies that older versions exported act as they did, or are refused in one line that says what to do."""

from __future__ import annotations

import json
import subprocess
import tarfile
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save

import headrace
from learner.saving.export import load, read_exported
from learner.weights.checkpoint import DIGEST_KEY, digest_of, write
from tests.harness.run import World
from tests.headrace.older.make import FILES, RUNS
from transport.experience import Categorical

FOLDER = Path(__file__).parent / "older"
OBSERVATIONS = np.array([[0.1, -0.2, 0.03, 0.4], [-1.0, 0.5, -0.1, 2.0]], np.float32)
# What the version that wrote the file computed for OBSERVATIONS: Q-values, logits, or means and log-stds.
ANSWERS = {
    "format1-dqn": [[11.643795013427734, 8.326883316040039], [1.6811490058898926, 7.435476779937744]],
    "format1-dqn-with-spaces": [[12.071773529052734, 9.874917984008789], [0.33454108238220215, 6.717828750610352]],
    "format1-ppo": [[-1.3752373456954956, 1.3600637912750244], [-0.8989636898040771, 0.8874375224113464]],
    "format1-sac": [[0.14686530828475952, -0.775435209274292], [0.30887630581855774, -0.6878955960273743]],
    "format2-ppo": [[-0.06128878518939018, 0.06065138801932335], [0.20193324983119965, -0.19533585011959076]],
}


TORQUES = [[0.2916367], [0.59882903]]  # of the means in format1-sac: 2 * tanh(mean)


def test_there_is_a_file_of_each_version_that_can_be_made() -> None:
    assert {path.stem for path in FOLDER.glob("*.safetensors")} == FILES.keys() == ANSWERS.keys()
    assert {path.name.removesuffix(".tar.gz") for path in FOLDER.glob("*.tar.gz")} == RUNS.keys()


@pytest.mark.parametrize("name", ANSWERS)
def test_a_policy_of_an_older_version_acts_as_it_did(name: str) -> None:
    path = FOLDER / f"{name}.safetensors"
    exported = load(path)
    seen = OBSERVATIONS[:, : exported.spec.fields[0].shape[0]]
    found, _ = exported.inference({"observation": seen[:, None]}, {})
    np.testing.assert_allclose(found, ANSWERS[name], rtol=1e-5, atol=1e-6)
    policy = headrace.load(path)
    actions = np.argmax(ANSWERS[name], 1) if exported.spec.action == Categorical(2) else TORQUES
    np.testing.assert_allclose([policy.predict(one) for one in seen], actions, rtol=1e-5)
    assert headrace.evaluate(policy, episodes=1)["episodes"] == 1
    with pytest.raises(headrace.ConfigurationError, match="holds one policy: `headrace export RUN FILE --best`"):
        headrace.load(path, best=True)
    assert exported.metadata["spec_digest"] == exported.spec.digest, "a new run may begin with it"


def test_a_file_of_format_1_may_be_read_and_exported_again_with_the_settings_of_today(tmp_path: Path) -> None:
    """As `headrace push` does."""
    weights, metadata, config = read_exported(FOLDER / "format1-dqn.safetensors")
    assert config["algorithm"]["target_update_interval"] == 200 and "deploy" not in config
    assert not {"urdf", "tier", "skip", "actions"} & config["env"].keys(), "options of other environments"
    write(tmp_path / "again", weights, metadata)
    assert read_exported(tmp_path / "again")[2] == config and headrace.load(tmp_path / "again").predict(OBSERVATIONS[0]) == 0


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"network": "evil:Torso"}, "an algorithm or network that format 1 did not have"),
        ({"name": "evil:Algorithm"}, "an algorithm or network that format 1 did not have"),
        ({"hidden": "wide"}, "Expected `int`"),
        ({"double": "yes"}, "Expected `bool`"),
        ({"network": "linear"}, "another network"),
    ],
)
def test_a_file_of_format_1_that_cannot_be_read_is_refused_in_one_line(tmp_path: Path, changed: dict[str, str], why: str) -> None:
    with safe_open(FOLDER / "format1-dqn.safetensors", framework="numpy") as file:
        metadata = {key: value for key, value in file.metadata().items() if key != DIGEST_KEY}
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    config = json.loads(metadata["config"])
    metadata["config"] = json.dumps(config | {"algorithm": config["algorithm"] | changed})
    path = tmp_path / "older"
    path.write_bytes(save(weights, metadata | {DIGEST_KEY: digest_of(weights, metadata)}))
    with pytest.raises(headrace.ConfigurationError, match=f"has format '1' .*{why}.*: use the version that wrote it") as told:
        headrace.load(path)
    assert "\n" not in str(told.value)


ALWAYS = {"format2-dqn-run", "format4-sac-run"}  # the oldest and one of the newest; `make learn-check` has the others


@pytest.mark.flow
@pytest.mark.parametrize("name", [name if name in ALWAYS else pytest.param(name, marks=pytest.mark.slow) for name in RUNS])
def test_a_run_of_an_older_version_is_sound_plays_and_goes_on(name: str, tmp_path: Path) -> None:
    with tarfile.open(FOLDER / f"{name}.tar.gz") as file:
        file.extractall(tmp_path / "runs", filter="data")

    world = World(tmp_path, "CartPole-v1", ())

    def said(done: subprocess.CompletedProcess[str]) -> str:
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    said(world.command("fsck", "old"))
    assert json.loads(said(world.command_apart("eval", "old", "--episodes", "1", "--json")))["episodes"] == 1
    before = json.loads(said(world.command("status", "old", "--json")))["steps"]
    more = ["--run", "old", "--resume", "--total-steps", str(before + 500), "--evaluator.enabled", "false"]
    text = said(world.command_apart("up", *more))
    assert before >= 1000 and "continues from" in text
    after = json.loads(said(world.command("status", "old", "--json")))
    assert after["steps"] >= before + 500 and after["learner"]["updates"] > 0
