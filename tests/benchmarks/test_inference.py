"""`headrace bench inference`: a tiny run of it, and that what it compares computes the same."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.actors import inference
from benchmarks.common.processes import ONE_THREAD
from deploy.config.layers import layers, resolve
from learner.algorithms.base import make_algorithm
from learner.devices.capabilities import DeviceError
from learner.inference import int8 as quantised
from learner.weights.checkpoint import write
from transport.experience import write_spec

CASE = "CartPole-v1, dqn"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inference, "OBSERVED", 64)
    monkeypatch.setattr(inference, "CALL_SECONDS", 1e-4)
    for name, value in ONE_THREAD.items():
        monkeypatch.setenv(name, value)


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[tuple[str, str], float]:
    assert inference.main([*arguments, "--runs", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {"benchmark", "machine", "commit", "notes", "results", "peers", "ratios"} <= set(found)
    return {(result["case"], result["metric"]): result["value"] for result in found["results"]}


@pytest.mark.skipif(bool(quantised.missing()), reason=quantised.missing())
def test_a_tiny_run_of_a_network_with_convolutions_tells_every_precision(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--case", "mario, dqn")
    for precision in inference.PRECISIONS:
        assert all(found[f"mario, dqn, {rows} rows", precision] > 0 for rows in inference.ROWS)
        assert found["mario, dqn, refresh", precision] >= 0
    for precision in ("bfloat16", "int8"):
        assert 50 < found["mario, dqn, actions", f"{precision} same action"] <= 100
        assert 0 < found["mario, dqn, actions", f"{precision} difference"] < 10


@pytest.mark.parametrize("case", [CASE, "snake, dqn", "robot, ppo", "robot, sac"])
def test_the_ways_not_taken_compute_what_numpy_does(case: str) -> None:
    config = resolve(layers(inference.CASES[case], None))
    one = inference.subject(config, [])
    policies = inference.ways(one)
    answers = {name: inference._answers(policy, one.seen) for name, policy in policies.items()}
    assert len(answers["float32"]) == inference.OBSERVED and not one.trained
    spread = np.abs(answers["float32"]).max()
    np.testing.assert_allclose(answers["torch float32"], answers["float32"], atol=1e-4 * spread)
    for name in ("torch bfloat16", "torch int8"):
        assert not np.allclose(answers[name], answers["float32"], rtol=0, atol=1e-6 * spread)
        np.testing.assert_allclose(answers[name], answers["float32"], atol=0.2 * spread)


def test_an_exported_file_of_the_case_is_acted_by(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = resolve(layers(inference.CASES[CASE], None))
    one = inference.subject(config, [])
    network = make_algorithm(config.algorithm).policy(one.spec)
    about = {"env": "CartPole-v1", "spec": write_spec(one.spec).decode()}
    about["config"] = json.dumps({"algorithm": config.algorithm.flat()})
    weights = {name: value.numpy() for name, value in network.state_dict().items()}
    write(tmp_path / "mine", weights, about)
    write(tmp_path / "another's", weights, about | {"env": "snake"})
    for name, trained in (("mine", True), ("another's", False)):
        again = inference.subject(config, [tmp_path / name])
        assert again.trained is trained
        same = [np.array_equal(value, weights[key]) for key, value in again.network.state_dict().items()]
        assert all(same) is trained
    assert inference.main(["--case", CASE, "--weights", str(tmp_path / "none")]) == 2
    assert capsys.readouterr().err.startswith("headrace: ")


def test_without_int8_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DeviceError("precision int8 is not to be had on cpu: why")

    monkeypatch.setattr(inference, "check", fail)
    assert inference.main([]) == 2
    assert capsys.readouterr().err == "headrace: precision int8 is not to be had on cpu: why\n"
