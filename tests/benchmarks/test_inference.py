"""`headrace bench inference`: a tiny run of it, and that what it compares computes the same."""

from __future__ import annotations

import json

import pytest

from benchmarks.actors import inference
from benchmarks.common.processes import ONE_THREAD
from learner.devices.capabilities import DeviceError
from learner.inference import int8 as quantised


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
def test_a_tiny_run_of_a_network_with_convolutions_tells_every_way(capsys: pytest.CaptureFixture[str]) -> None:
    found = document(capsys, "--case", "snake, dqn, convolutions")
    for way in inference.WAYS:
        assert all(found[f"snake, dqn, convolutions, {rows} rows", way] > 0 for rows in inference.ROWS)
        assert found["snake, dqn, convolutions, refresh", way] >= 0
    for precision in ("bfloat16", "int8"):
        assert 50 < found["snake, dqn, convolutions, actions", f"{precision} same action"] <= 100
        assert 0 < found["snake, dqn, convolutions, actions", f"{precision} difference"] < 10
    assert 0 <= found["snake, dqn, convolutions, actions", "numpy difference"] < 1e-3


def test_without_int8_it_says_so(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise DeviceError("precision int8 is not to be had on cpu: why")

    monkeypatch.setattr(inference, "check", fail)
    assert inference.main([]) == 2
    assert capsys.readouterr().err == "headrace: precision int8 is not to be had on cpu: why\n"
