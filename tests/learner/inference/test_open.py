"""Acting by the description in a run's folder, in a process that has no torch unless it must."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.children import child_environment
from learner.algorithms.base import find_algorithm
from learner.description import check_description
from learner.devices import detection
from learner.devices.errors import DeviceError
from learner.inference.choice import needs_torch
from learner.inference.open import open_inference, run_description
from learner.networks.describe import describe
from tests.learner.examples import image, make_spec, vector
from transport.experience import Column, Continuous, ExperienceSpec, write_spec
from transport.run_dir import RunDir

OWN, PICTURE = "tests.learner.networks.own", image()
CODE = """
import json, sys
from pathlib import Path
import numpy as np
import actors.__main__, actors.evaluation.evaluator
from learner.algorithms.base import make_algorithm, read_algorithm
from learner.inference.choice import needs_torch
from learner.inference.open import open_inference, run_description
from transport.experience import read_spec
from transport.run_dir import RunDir
run_dir = RunDir(Path(sys.argv[1]))
spec, algorithm = read_spec(run_dir.spec.read_bytes()), make_algorithm(read_algorithm(json.loads(sys.argv[2])))
inference = open_inference(algorithm, spec, run_description(run_dir, algorithm, spec), "auto", 1, rows=int(sys.argv[3]))
policy = algorithm.acting(spec, inference)
observation = {field.name: np.zeros((3, spec.stack, *field.shape), field.dtype) for field in spec.fields}
action = policy.act(observation, {}, "explore").action
print(json.dumps([len(action), "torch" in sys.modules]))
"""


def run_of(tmp_path: Path, algorithm: dict[str, Any], *fields: Column) -> RunDir:
    made = RunDir(tmp_path / "run")
    made.create()
    name = algorithm["name"]
    spec = make_spec(*fields) if name != "sac" else ExperienceSpec(fields, Continuous((-1.0,), (1.0,)), 16)
    kind = find_algorithm(name)
    policy = kind(msgspec.convert({key: value for key, value in algorithm.items() if key != "name"}, kind.Config)).policy(spec)
    made.spec.write_bytes(write_spec(spec))
    made.policy.write_bytes(msgspec.json.encode(describe(policy)))
    return made


@pytest.mark.parametrize(
    ("algorithm", "field", "rows", "torch"),
    [
        ({"name": "dqn"}, vector(), 16, False),
        ({"name": "ppo"}, vector(), 16, False),
        pytest.param({"name": "sac"}, vector(), 16, False, marks=pytest.mark.slow),
        pytest.param({"name": "dqn", "network": "mlp"}, image(shape=(9, 9)), 16, False, marks=pytest.mark.slow),
        ({"name": "dqn", "network": f"{OWN}:known"}, vector(), 16, False),
        ({"name": "dqn", "network": "compact"}, image(), 4, False),
        pytest.param({"name": "dqn", "network": "nature"}, image(), 1, False, marks=pytest.mark.slow),
        pytest.param({"name": "dqn", "network": "nature"}, image(), 4, True, marks=pytest.mark.slow),
        ({"name": "ppo", "network": f"{OWN}:Torso"}, vector(), 16, True),
    ],
    ids=str,
)
def test_an_actor_imports_torch_only_where_its_network_needs_it(
    tmp_path: Path, algorithm: dict[str, Any], field: Column, rows: int, torch: bool
) -> None:
    run = run_of(tmp_path, algorithm, field)
    command = [sys.executable, "-c", CODE, str(run.path), json.dumps(algorithm), str(rows)]
    done = subprocess.run(command, capture_output=True, text=True, env=child_environment(), timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == [3, torch]


@pytest.mark.parametrize("field", [vector(), image()], ids=["numpy", "torch"])
def test_a_device_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: Column) -> None:
    monkeypatch.setattr(detection, "missing", lambda kind: "no GPU is seen")
    run, kind = run_of(tmp_path, {"name": "dqn"}, field), find_algorithm("dqn")
    algorithm, spec = kind(kind.Config()), make_spec(field)
    with pytest.raises(DeviceError, match="device cuda is not available: no GPU is seen"):
        open_inference(algorithm, spec, run_description(run, algorithm, spec), device="cuda")


def test_torch_acts_where_it_is_faster_or_asked_for() -> None:
    def why(torso: str, field: Column = PICTURE, **options: Any) -> str:
        kind = find_algorithm("dqn")
        return needs_torch(describe(kind(kind.Config(network=torso)).policy(make_spec(field, stack=4))), **options)

    assert why("compact", precision="auto", rows=8) == why("nature", precision="float32") == ""
    assert why("nature", rows=4) == "the network is large: 37 million multiplications a step are more than 16"
    for precision in ("bfloat16", "int8"):
        assert why("compact", precision=precision) == f"numpy does not compute in {precision}"
        assert why("mlp", vector(), precision=precision, rows=1000) == ""
    assert why("mlp", vector(), device="cuda") == "the device is cuda"
    assert why(f"{OWN}:Torso", vector()) == f"numpy does not know {OWN}:Torso"


def test_a_learner_whose_code_was_edited_is_refused(tmp_path: Path) -> None:
    run = run_of(tmp_path, {"name": "dqn"}, vector())
    kind = find_algorithm("dqn")
    spec = make_spec(vector())
    check_description(run, kind(kind.Config()).policy(spec))
    with pytest.raises(ValueError, match=r"differs from the one that this run was started with \(body.torso.1.weight\)"):
        check_description(run, kind(kind.Config(hidden=9)).policy(spec))
    run.policy.unlink()
    check_description(run, kind(kind.Config(hidden=9)).policy(spec))
