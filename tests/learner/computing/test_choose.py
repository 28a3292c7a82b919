"""Which library learns: numpy where it can and is faster, and one line where it was asked for and cannot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from learner.algorithms.base import Algorithm, join, make_algorithm
from learner.algorithms.dqn.algorithm import Dqn
from learner.algorithms.ppo.config import PpoConfig
from learner.algorithms.sac.config import SacConfig
from learner.computing import by_torch, choose, trial
from learner.computing.choose import Computing
from learner.config import LearnerConfig, LearnerSettings
from learner.devices import capabilities
from learner.parallel.base import Group
from learner.updates.process import NoProcess
from tests.learner.examples import CPU, algorithm_of, image, vector
from transport.experience import Categorical, Continuous, ExperienceSpec
from transport.names import Named
from transport.run_dir import RunDir

SPEC = ExperienceSpec((vector(),), Categorical(3), 8)
REALS = ExperienceSpec((vector(),), Continuous((-1.0,), (1.0,)), 8)
SMALL: dict[str, Any] = {"name": "dqn", "hidden": 8}


class Lines(Group):
    """Keeps what is said."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture(autouse=True)
def unchanged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(capabilities, "set_up", lambda device, threads: None)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path))


def begin(
    algorithm: dict[str, Any] = SMALL, spec: ExperienceSpec = SPEC, made: Algorithm | None = None, **config: Any
) -> tuple[Computing, list[str]]:
    """What a learner with these settings computes with, and what it says."""
    settings = LearnerSettings(4, "toy", algorithm, msgspec.convert({"device": "cpu", "batch_size": 64} | config, LearnerConfig))
    options = {name: value for name, value in algorithm.items() if name != "name"}
    made = made or make_algorithm(Named(algorithm["name"], msgspec.convert(options, _config(algorithm["name"]))))
    group = Lines()
    spec = join(spec, made.needs(spec))
    return choose.begin(made, settings, spec, RunDir(Path("nowhere")), NoProcess(), group), group.said


def _config(name: str) -> Any:
    from learner.algorithms.base import find_algorithm

    return find_algorithm(name).Config


@pytest.mark.parametrize("name", ["dqn", "ppo", "pqn"])
def test_small_networks_learn_by_numpy_without_a_trial(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "torch_by_numpy", lambda *given: pytest.fail("tried"))
    found, said = begin({"name": name, "hidden": 8})
    assert found.runtime.library == "numpy" and not said
    assert begin({"name": name, "hidden": 8}, engine="torch")[0].runtime.library == "torch"


TORCHS: list[tuple[dict[str, Any], ExperienceSpec, dict[str, Any], str]] = [
    (SMALL, SPEC, {"compile": True}, "--learner.compile is torch's"),
    (SMALL, SPEC, {"graphs": "on"}, "--learner.graphs on is torch's"),
    (SMALL, SPEC, {"precision": "bfloat16"}, "--learner.precision bfloat16 is torch's"),
    (SMALL, SPEC, {"accumulation": 2}, "--learner.accumulation is torch's"),
    (SMALL, SPEC, {"memory_limit_bytes": 10**9}, "--learner.memory-limit-bytes is torch's"),
    ({"name": "dqn", "hidden": 8}, ExperienceSpec((image(),), Categorical(3), 8), {}, "images, memories and parts of your own"),
    ({"name": "ppo", "hidden": 8, "memory": "lstm"}, SPEC, {}, "images, memories and parts of your own are torch's"),
    ({"name": "dqn", "network": "tests.learner.networks.own:Late"}, SPEC, {}, "images, memories and parts of your own"),
]


@pytest.mark.parametrize(("algorithm", "spec", "config", "why"), TORCHS)
def test_what_only_torch_can_do_torch_does_and_numpy_refuses_in_one_line(
    algorithm: dict[str, Any], spec: ExperienceSpec, config: dict[str, Any], why: str
) -> None:
    if "own" not in str(algorithm.get("network")):
        assert begin(algorithm, spec, **config)[0].runtime.library == "torch"
    with pytest.raises(ValueError) as error:
        begin(algorithm, spec, engine="numpy", **config)
    text = str(error.value)
    made = make_algorithm(
        Named(
            algorithm["name"],
            msgspec.convert({name: value for name, value in algorithm.items() if name != "name"}, _config(algorithm["name"])),
        )
    )
    with pytest.raises(ValueError) as before:  # of a run
        choose.check(
            made, msgspec.convert({"engine": "numpy", "batch_size": 64, **config}, LearnerConfig), join(spec, made.needs(spec))
        )
    assert str(before.value) == text
    assert text.startswith("--learner.engine numpy cannot learn here: ") and why in text and "\n" not in text and "auto" in text


def test_several_processes_and_accelerators_are_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose.obstacle(LearnerConfig(processes=2)) == "--learner.processes 2 is torch's"
    assert choose.obstacle(LearnerConfig()) == ""
    monkeypatch.setattr(by_torch, "choose_device", lambda *given: torch.device("xpu"))
    with pytest.raises(ValueError, match="cannot learn here: --device xpu is torch's"):
        begin(device="xpu", engine="numpy")


def test_where_the_accelerator_leaves_a_small_network_to_the_cpu_numpy_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choose, "is_cpu", lambda name: False)
    monkeypatch.setattr(by_torch, "choose_device", lambda *given: CPU)
    assert begin(device="auto")[0].runtime.library == "numpy"


def test_an_algorithm_that_replaces_its_update_alone_is_not_learned_by_the_other_one_s_arrays() -> None:
    class Mine(Dqn):
        def update(self, spec: Any, runtime: Any) -> Any:
            return super().update(spec, runtime)

    made = Mine(Dqn.Config(hidden=8))
    assert begin(made=made)[0].runtime.library == "torch"
    with pytest.raises(ValueError, match="parts of your own"):
        begin(made=made, engine="numpy")


def test_a_larger_network_is_tried_once_and_the_answer_is_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choose, "SMALL", 0)
    asked: list[float] = []

    def answer(ratio: float) -> None:
        monkeypatch.setattr(trial, "torch_by_numpy", lambda *given: asked.append(ratio) or ratio)

    answer(1.5)
    found, said = begin()
    assert found.runtime.library == "numpy"
    assert said == ["a step takes torch 1.50 times as long as numpy, tried just now; --learner.engine takes the other"]
    answer(0.5)
    found, said = begin()
    assert found.runtime.library == "numpy" and "as tried before" in said[0], "the file has the first answer"
    assert begin(batch_size=128)[0].runtime.library == "torch", "another shape is tried by itself"
    assert asked == [1.5, 0.5]
    (tmp_path / trial.FILE).write_bytes(b"broken")
    assert begin()[0].runtime.library == "torch", "a damaged file is made anew"
    assert begin()[0].runtime.library == "torch" and asked == [1.5, 0.5, 0.5]
    assert begin(engine="numpy")[0].runtime.library == "numpy", "who asks for one gets it"


def test_without_a_place_for_the_file_each_learner_tries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(choose, "SMALL", 0)
    monkeypatch.setenv("HEADRACE_CACHE", str(tmp_path / "file" / "folder"))
    (tmp_path / "file").touch()
    monkeypatch.setattr(trial, "torch_by_numpy", lambda *given: 2.0)
    assert "tried just now" in begin()[1][0] and "tried just now" in begin()[1][0]


@pytest.mark.parametrize(
    ("config", "env"), [(PpoConfig(hidden=8), SPEC), (Dqn.Config(hidden=8), SPEC), (SacConfig(hidden=8), REALS)]
)
def test_a_trial_takes_a_few_steps_of_each_and_leaves_no_trace(config: Any, env: ExperienceSpec) -> None:
    algorithm = algorithm_of(config)
    spec = join(env, algorithm.needs(env))
    before = torch.get_rng_state()
    ratio = trial.torch_by_numpy(algorithm, LearnerConfig(batch_size=64), spec)
    assert 0.01 < ratio < 1000 and torch.equal(before, torch.get_rng_state())


def test_the_choice_of_numpy_imports_no_torch() -> None:
    code = """
import sys
from pathlib import Path
from learner.algorithms.base import make_algorithm, read_algorithm, join
from learner.computing.choose import begin
from learner.config import LearnerConfig, LearnerSettings
from learner.parallel.base import Group
from learner.updates.process import NoProcess
from transport.experience import Categorical, Continuous, ExperienceSpec, observed
from transport.run_dir import RunDir
for name in ("dqn", "ppo", "pqn", "reppo", "sac"):
    settings = LearnerSettings(1, "toy", {"name": name, "hidden": 8}, LearnerConfig(device="cpu"))
    algorithm = make_algorithm(read_algorithm(settings.algorithm))
    action = Categorical(3) if "categorical" in algorithm.actions else Continuous((-1.0,), (1.0,))
    env = ExperienceSpec((observed("vector", (4,), "<f4"),), action, 8)
    spec = join(env, algorithm.needs(env))
    print(begin(algorithm, settings, spec, RunDir(Path("nowhere")), NoProcess(), Group()).runtime.library)
print("torch" in sys.modules)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.stdout.split() == ["numpy"] * 5 + ["False"], found.stderr
