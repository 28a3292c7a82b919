"""The counts of bad input in the status."""

from __future__ import annotations

import io

from rich.console import Console

from deploy.reporting import status


def test_bad_input_is_counted_for_its_process_and_only_where_there_is_some() -> None:
    records = {
        "actor-0": {"steps": 9.0, "broken_episodes": 3.0},
        "actor-1": {"steps": 9.0, "broken_episodes": 0.0, "rejected_weights": float("nan")},
        "learner": {"skipped_updates": 2.0, "rollbacks": 1.0},
    }
    found = status.troubles(records)
    assert found == {"actor-0": {"broken_episodes": 3}, "learner": {"skipped_updates": 2, "rollbacks": 1}}
    document = status.empty("mine", "mario", "dqn")
    shown = []
    for troubles in ({}, found):
        console = Console(file=io.StringIO(), width=200)
        status.show(document | {"troubles": troubles}, console)
        shown.append(console.file.getvalue())  # type: ignore[attr-defined]
    assert "trouble" not in shown[0]
    assert "trouble  actor-0: broken episodes 3\n" in shown[1] and "learner: skipped updates 2 · rollbacks 1\n" in shown[1]
