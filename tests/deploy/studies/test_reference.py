"""The reference behind a run's return."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.learning import references
from deploy.children import ROOT
from deploy.recorded.run import RecordedRun
from deploy.views.web.document import PageFollower, curves
from tests.deploy.views.web.made_up import made_up


def test_what_is_shipped_is_what_was_measured() -> None:
    """Where this fails after new results: python -m benchmarks.learning.references"""
    assert references.SHIPPED.read_text(encoding="utf-8") == references.made()
    assert "CartPole-v1" in {one.env["id"] for one in curves()}
    for one in curves():
        raw = json.loads((ROOT / one.source).read_bytes())["curve"]
        measured = {(point["seconds"], point["steps"], point["return_mean"]) for point in raw}
        shown = list(zip(one.seconds, one.steps, one.return_mean, strict=True))
        assert set(shown) <= measured and sorted(shown) == shown and 15 <= len(shown) <= references.MOST_POINTS


def shown(folder: Path, **settings: Any) -> dict[str, Any] | None:
    found: dict[str, Any] | None = PageFollower(RecordedRun(made_up(folder, seconds=60, **settings))).whole()["reference"]
    return found


def test_a_run_has_the_reference_of_its_environment(tmp_path: Path) -> None:
    found = shown(tmp_path / "mine", env__chunk_length=32, learner__learning_rate=0.5)
    assert found and found["env"]["id"] == "CartPole-v1" and len(found["steps"]) == len(found["return_mean"]) > 10


@pytest.mark.parametrize("settings", [{"env__id": "CartPole-v0"}, {"env__max_episode_steps": 50}, {"env__wrappers": ["my:Wrap"]}])
def test_returns_of_another_task_are_not_compared(settings: dict[str, Any], tmp_path: Path) -> None:
    assert shown(tmp_path / "mine", **settings) is None
