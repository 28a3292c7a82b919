"""`headrace bench pipeline`: a tiny run of it, and the arithmetic of its figures."""

from __future__ import annotations

import json
import os

import pytest

from benchmarks.pipeline import __main__ as pipeline

TINY = ["--batch-size", "32", "--envs-per-actor", "4", "--seconds", "1", "--runs", "1"]


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_tiny_run_ends_with_sound_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main([*TINY, "--cases", "null", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert {"benchmark", "machine", "commit", "results", "peers", "ratios"} <= set(document)
    found = {(result["case"], result["metric"]): result for result in document["results"]}
    assert all(result["runs"] == [result["value"]] for result in found.values()), "one run is its own median"
    for metric, unit in (("steps", "steps/s"), ("items", "items/s"), ("updates", "updates/s")):
        result = found["null", metric]
        assert result["unit"] == unit and result["value"] > 0
    assert found["null", "items"]["value"] == pytest.approx(32 * found["null", "updates"]["value"])
    phases = {"learner": {"data_wait", "update", "send"}, "replay": {"busy"}, "actor": {"act", "env_step", "insert"}}
    for process, names in phases.items():
        shares = [found["null", f"{process}.{name}"]["value"] for name in names]
        assert 0 < sum(shares) < 101, f"the phases of the {process} do not overlap"
        assert found["null", f"{process} CPU"]["value"] > 0
