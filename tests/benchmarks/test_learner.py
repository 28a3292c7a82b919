"""`headrace bench learner`: a tiny real run of it, the plan of its cases, and the arithmetic of its figures."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from benchmarks.device import gpu
from benchmarks.learner import __main__ as learner

TINY = ["--device", "cpu", "--rounds", "1", "--seconds", "1", "--short-seconds", "0.5", "--threads", "1"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_tiny_run_ends_with_sound_json(capsys: pytest.CaptureFixture[str]) -> None:
    cases = ["--cases", "compared", "--batches", "mlp:32", "ppo-mlp:64"]
    assert learner.main([*TINY, *cases, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"benchmark", "machine", "commit", "results", "peers", "ratios"} <= set(document)
    assert not any("left out" in note for note in document["notes"]), document["notes"]
    found = {(each["case"], each["metric"]): each["value"] for each in document["results"]}
    for case, items in (("mlp 32", 32), ("ppo-mlp 64", None)):
        assert found[case, "updates"] > 0 and found[f"{case}, bare loop", "updates"] > 0
        assert 0 <= found[case, "data wait"] < 100 and 0 < found[case, "update"] <= 100 and found[case, "memory"] > 50
        if items:
            assert found[case, "items"] == pytest.approx(items * found[case, "updates"])
    ratios = {(each["case"], each["peer"]): each["value"] for each in document["ratios"]}
    assert ratios["mlp 32", "bare loop"] == pytest.approx(found["mlp 32", "updates"] / found["mlp 32, bare loop", "updates"])
    assert sorted(ratios) == [("mlp 32", "bare loop"), ("ppo-mlp 64", "bare loop")]


def test_the_plan_for_a_gpu_keeps_within_its_time_and_writes_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told: list[tuple[str, float]] = []

    def measure(name: str, seconds: float, out: Path, more: list[str]) -> bool:
        told.append((name, seconds))
        (out / f"{name}.json").write_text(json.dumps({"machine": {}, "notes": [name], "results": [], "ratios": []}))
        return name != "device"

    monkeypatch.setattr(gpu, "measure", measure)
    assert gpu.main(["--out", str(tmp_path / "new"), "--budget", "540"]) == 1, "one has written nothing"
    names, seconds = zip(*told, strict=True)
    assert names == gpu.FIRST
    assert seconds == pytest.approx((540 * 260 / 740, 540 * 80 / 740, 540 * 400 / 740))
    assert "variants\n" in capsys.readouterr().out
    for name, part in gpu.PARTS.items():
        if part.benchmark == "learner":
            assert learner.parse([*part.options, "--device", "cpu", "--budget", "5", "--json"]).cases, name
