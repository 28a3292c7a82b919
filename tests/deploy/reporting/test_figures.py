"""Every figure has one home, and what is derived from figures is computed once."""

from __future__ import annotations

from typing import Any

import pytest

from actors import figures as evaluation_figures
from actors.figures import EVALUATION, Figure, evaluation_line
from deploy.reporting import figures, flow
from deploy.reporting.flow import NewestRecord
from deploy.views.sharing import facts

REPLAY: dict[str, float | None] = {
    "items": 25.0,
    "capacity": 100.0,
    "band_low": 2.0,
    "inserted_steps_per_second": 200.0,
    "sampled_items_per_second": 800.0,
}
LEARNER: dict[str, float | None] = {"updates_per_second": 10.0, "policy_version": 7.0, "data_wait_fraction": 0.2}
ACTOR: dict[str, float | None] = {
    "lag": 1.0,
    "environments": 4.0,
    "raw_bytes_per_second": 600.0,
    "sent_bytes_per_second": 100.0,
    "wait_credit_fraction": 0.1,
}


def found(state: str = "running", **changed: NewestRecord) -> Any:
    processes = [{"name": name, "role": name.partition("-")[0]} for name in ("replay", "learner", "actor-0", "actor-1")]
    status = {"state": state, "processes": processes, "steps": 600, "total_steps": 1000, "bottleneck": "simulators (…) · try"}
    records = {"replay": REPLAY, "learner": LEARNER, "actor-0": ACTOR, "actor-1": ACTOR | {"lag": 2.0}, "actor-9": ACTOR}
    return flow.flow(status, records | {name.replace("_", "-"): record for name, record in changed.items()})


def test_the_flow_is_that_of_the_actors_which_the_run_has_now() -> None:
    now = found()
    assert (now.actors, now.environments, now.sent_bytes_per_second, now.compression, now.lag) == (2, 8.0, 200.0, 6.0, 1.5)
    assert (now.fill, now.rollouts, now.steps_per_second, now.items_per_second, now.seconds_left) == (0.25, False, 200, 800, 2.0)
    assert (now.limit, now.blocked, now.learner_waits) == ("simulators", "batches", 0.2)
    rollouts = found(replay={"items": 5.0, "capacity": 10.0})
    assert rollouts.rollouts and rollouts.fill is None
    assert found("stopped").seconds_left is None and found(replay={}, learner={}).steps_per_second is None


@pytest.mark.parametrize(
    ("state", "credit", "hold", "data_wait", "blocked"),
    [
        ("running", 0.1, 0.1, 0.1, ""),
        ("running", 0.1, 0.0, 0.5, "batches"),
        ("running", 0.6, 0.0, 0.2, "experience"),
        ("running", 0.0, 0.6, 0.2, "experience"),
        ("stopped", 0.6, 0.6, 0.2, ""),
    ],
)
def test_the_edge_is_blocked_where_a_process_waits_longest(
    state: str, credit: float, hold: float, data_wait: float, blocked: str
) -> None:
    waits = ACTOR | {"wait_credit_fraction": credit}
    replay, learner = REPLAY | {"insert_hold_fraction": hold}, LEARNER | {"data_wait_fraction": data_wait}
    assert found(state, actor_0=waits, actor_1=waits, replay=replay, learner=learner).blocked == blocked


def test_an_actor_that_has_never_waited_counts_as_one_that_does_not_wait() -> None:
    assert flow.actors_wait([ACTOR | {"wait_credit_fraction": 0.6}, {"lag": 1.0}, {}], {}) == pytest.approx(0.2)


def test_no_two_figures_have_one_name_or_one_tag() -> None:
    sections = (figures.ACTORS, figures.REPLAY, figures.LEARNER, figures.INFERENCE, EVALUATION)
    for one in sections:
        assert len({figure.name for figure in one}) == len(one)
    tags = [figure.tag for one in sections for figure in one if figure.tag]
    assert len(set(tags)) == len(tags)


def test_a_new_figure_of_the_evaluator_is_in_the_log_and_in_the_sinks(monkeypatch: pytest.MonkeyPatch) -> None:
    made_up = Figure("smoothness_mean", "percent", "smoothness", "eval/smoothness", ("log",), "Smoothness", card="smoothness")
    for module in (figures, evaluation_figures, facts):
        monkeypatch.setattr(module, "EVALUATION", (*EVALUATION, made_up))
    measured = {"return_mean": 5.0, "smoothness_mean": 0.5}
    assert evaluation_line(measured) == "smoothness 50% · return 5.00"
    assert figures.tags({}, {}, {}, measured, 1.0)["eval/smoothness"] == 0.5
    assert "Smoothness" in [chart["title"] for chart in figures.charts()]
    assert made_up.name in figures.shown_in((*EVALUATION, made_up), "page"), "what has a chart has a history"
    assert facts.measured_by("evaluator", {"episodes": 3} | measured).figures["smoothness_mean"] == 0.5
