"""`headrace eval` and `headrace demo` play the policy of a file as they play that of a run."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from actors.evaluation import demo, evaluate
from actors.exports import write
from deploy.cli import main as cli
from deploy.cli.policies import common, export
from learner.weights import checkpoint

FILE = Path(__file__).parents[2] / "headrace" / "older" / "format2-ppo.safetensors"


@pytest.fixture(autouse=True)
def played_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In this process instead of one of its own."""
    modules = {"actors.evaluation.evaluate": evaluate, "actors.evaluation.demo": demo, "actors.exports.write": write}
    for user in (common, export):
        monkeypatch.setattr(user, "child", lambda module, *words, **how: modules[module].main(list(words)))
    monkeypatch.chdir(tmp_path)


def changed(path: Path, **config: Any) -> str:
    weights, metadata = checkpoint.read(FILE)
    found = json.loads(metadata["config"])
    found |= {section: values and {**found[section], **values} for section, values in config.items()}
    checkpoint.write(path, weights, metadata | {"config": json.dumps(found)})
    return str(path)


def test_a_file_is_played_where_there_is_no_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["eval", str(FILE), "--episodes", "2", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["run"], figures["env"], figures["policy_version"], figures["episodes"]) == (FILE.stem, "CartPole-v1", 4, 2)
    assert cli.main(["eval", "--run", str(FILE), "--episodes", "1", "--random", "--env.max-episode-steps", "5"]) == 0
    assert "actions at random, 1 episodes" in (told := capsys.readouterr().out) and "length   5.0 steps" in told
    assert cli.main(["demo", str(FILE), "--headless", "--episodes", "1"]) == 0
    assert "policy v4: return" in capsys.readouterr().out and not list(Path().iterdir())


@pytest.mark.parametrize("command", ["eval", "demo"])
def test_a_file_runs_no_code_unless_it_is_trusted(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = {"algorithm": {"network": "evil:Net"}}, {"env": {"wrappers": ["evil:W"]}}, {"env": {"id": "evil:Env"}}
    for number, section in enumerate(code):
        file = changed(tmp_path / f"{number}.safetensors", **section)
        assert cli.main([command, file]) == 2
        assert "evil:" in (told := capsys.readouterr().err) and "add --trust-config if you trust the file" in told
    assert cli.main([command, file, "--trust-config"]) == 2
    assert "no module 'evil'" in (told := capsys.readouterr().err) and "trust" not in told


def test_a_file_is_exported_without_running_its_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = changed(tmp_path / "x.safetensors", algorithm={"name": "evil:Algorithm"})
    for words in (["export", file, "x.onnx"], ["export", file, "x.h"]):
        assert cli.main(words) == 2
        assert "evil:" in (told := capsys.readouterr().err) and "trust" in told
    onnx = pytest.importorskip("onnx")
    assert cli.main(["export", str(FILE), "good.onnx"]) == 0
    model = onnx.load("good.onnx")
    config = next(entry for entry in model.metadata_props if entry.key == "config")
    config.value = json.dumps(json.loads(config.value) | {"algorithm": {"name": "evil:Algorithm"}})
    onnx.save(model, "evil.onnx")
    assert cli.main(["eval", str(FILE), "--weights", "evil.onnx", "--episodes", "1"]) == 0, "only its network is read"
    capsys.readouterr()
    assert cli.main(["eval", "evil.onnx"]) == 2
    assert "evil:" in (told := capsys.readouterr().err) and "trust" in told


def test_a_file_that_cannot_be_played_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights, metadata = checkpoint.read(FILE)
    del metadata["config"]
    checkpoint.write(tmp_path / "checkpoint.safetensors", weights, metadata)
    (tmp_path / "text.safetensors").write_text("no weights")
    changed(tmp_path / "null.safetensors", env=None)
    for words, reason in (
        (["eval", "checkpoint.safetensors"], "a checkpoint, but not an exported policy"),
        (["demo", "text.safetensors"], "not a safetensors file"),
        (["eval", "null.safetensors"], "has no configuration of a run"),
        (["eval", str(FILE), "--best"], "holds one policy"),
        (["status", str(FILE)], "is a file, not a run"),
    ):
        assert cli.main(words) == 2
        assert reason in (told := capsys.readouterr().err) and told.count("\n") == 1


def test_a_file_becomes_onnx_and_plays_the_same_episodes(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnxruntime")
    assert cli.main(["export", str(FILE), "policy.onnx"]) == 0
    assert "policy.onnx: 0.0 MB; 10,000 random observations: the same greedy actions" in capsys.readouterr().out
    lengths = []
    for file in (str(FILE), "policy.onnx"):
        assert cli.main(["eval", file, "--episodes", "3", "--json"]) == 0
        figures = json.loads(capsys.readouterr().out)
        lengths.append((figures["length_mean"], figures["return_mean"], figures["policy_version"]))
    assert lengths[0] == lengths[1]
    assert cli.main(["demo", "policy.onnx", "--headless", "--episodes", "1"]) == 0


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
def test_a_file_becomes_a_c_header_by_its_name_or_by_a_flag(capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["policy.h"], ["my-policy.txt", "--format", "c"]):
        assert cli.main(["export", str(FILE), *words]) == 0
        assert "the same greedy actions" in capsys.readouterr().out
    assert "int my_policy_act(const float *observation)" in Path("my-policy.txt").read_text()


def test_a_header_is_checked_or_not_written(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert cli.main(["export", str(FILE), "policy.h"]) == 2
    assert "install gcc or clang" in (told := capsys.readouterr().err) and told.count("\n") == 1
    assert not Path("policy.h").exists()


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["policy.safetensors"], "is a policy already"),
        (["policy.h", "--int8"], "--int8 is for ONNX"),
        (["policy.onnx", "--best"], "holds one policy"),
        (["policy.onnx", "--format", "tflite"], "--format"),
    ],
)
def test_a_form_that_cannot_be_is_one_line(words: list[str], reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["export", str(FILE), *words]) == 2
    assert reason in capsys.readouterr().err and not list(Path().iterdir())


def test_a_run_begins_with_a_policy_in_its_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["up", "--policy", str(FILE), "--dry-run"]) == 0
    told = capsys.readouterr().out
    assert 'id = "CartPole-v1"' in told and 'name = "ppo"' in told and f"weights = {json.dumps(str(FILE))}" in told
    for words, reason in (
        (["--policy", "nothing"], "there is no file nothing"),
        (["--policy", __file__], "not a safetensors file"),
    ):
        assert cli.main(["up", *words, "--dry-run"]) == 2
        assert reason in (told := capsys.readouterr().err) and told.count("\n") == 1
