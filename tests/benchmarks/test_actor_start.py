from __future__ import annotations

import json

import pytest

from benchmarks.actors import actor_start


@pytest.mark.slow
def test_an_actor_of_a_small_network_has_no_torch_and_its_figures_are_there(capsys: pytest.CaptureFixture[str]) -> None:
    assert actor_start.main(["--env", "CartPole-v1", "--runs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert any(note.startswith("CartPole-v1: ") and note.endswith(" no torch") for note in found["notes"])
    values = {result["metric"]: result["value"] for result in found["results"]}
    assert set(values) == set(actor_start.FIGURES) and all(value > 0 for value in values.values())
    assert values["own memory"] < values["memory"] < 150, "MB"
