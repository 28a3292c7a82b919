"""The sentence about the bottleneck, for every state that a run can be in."""

from __future__ import annotations

from typing import Any

import pytest

from deploy.reporting.bottleneck import bottleneck

ACTOR = {"env_step_fraction": 0.95, "act_fraction": 0.03, "wait_credit_fraction": 0.0}
REPLAY = {
    "items": 50_000.0, "band_low": 2.0, "band_high": 8.0, "samples_per_insert": 4.0,
    "sample_hold_fraction": 0.0, "busy_fraction": 0.2,
}  # fmt: skip
LEARNER = {"updates": 100.0, "update_fraction": 0.9, "data_wait_fraction": 0.02}
STARVED, WAITS = {"starved_fraction": 0.5}, {"wait_credit_fraction": 0.4}
BLOCKED = {"sample_hold_fraction": 0.6}  # the limiter lets the learner wait
FEW = {"update_fraction": 0.3}
LATE = {"data_wait_fraction": 0.4, "update_fraction": 0.58}


def verdict(actor: Any = None, replay: Any = None, learner: Any = None, cores_busy: float | None = 0.5, **changed: Any) -> str:
    """The sentence about two actors, replay and learner with these figures, on eight cores."""
    given: dict[str, Any] = {"min_size": 5_000, "envs_per_actor": 4, "cores": 8, "band": True, "advice": {}} | changed
    actors = [ACTOR | (actor or {})] * 2
    return bottleneck(actors, REPLAY | (replay or {}), LEARNER | (learner or {}), cores_busy=cores_busy, **given)


CASES: dict[str, tuple[dict[str, Any], str, str]] = {
    # what is changed, how the sentence begins, how it ends
    "before the first batch": (
        {"replay": {"items": 1200}, "learner": {"updates": 0}}, "filling replay 1,200/5,000 ·", "full enough"),
    "a learner that the limiter blocks": (
        {"replay": BLOCKED, "learner": FEW | {"data_wait_fraction": 0.65}},
        "simulators (actors 95% in env.step, learner waits 60%)", "· try more actors"),
    "the same on busy cores": (
        {"replay": BLOCKED, "learner": FEW, "cores_busy": 0.99}, "simulators (",
        "more actors will not help; try a higher --replay.samples-per-insert-high (now 8)"),
    "a simulator that sleeps leaves its core to more actors": (
        {"actor": {"processor_fraction": 0.05}, "replay": BLOCKED, "learner": FEW, "cores_busy": 0.99},
        "simulators (actors 95% in env.step, learner waits 60%)", "· try more actors"),
    "actors that compute the policy": (
        {"actor": {"env_step_fraction": 0.2, "act_fraction": 0.75}, "replay": {"sample_hold_fraction": 0.5}},
        "inference (actors 75% in the policy", "(--envs-per-actor, now 4): one inference serves them all"),
    "the algorithm's advice": (
        {"actor": WAITS, "learner": {"update_fraction": 0.97}, "advice": {"learner": "fewer quantiles"}},
        "learner (", "· try fewer quantiles or a faster device"),
    "actors that wait for a busy learner": (
        {"actor": WAITS, "learner": {"update_fraction": 0.97}},
        "learner (updates take 97% of its time, actors wait 40% of theirs) · try a faster device", "samples-per-insert-low"),
    "actors that wait for an idle learner": (
        {"replay": {"insert_hold_fraction": 0.5, "samples_per_insert": 1.9}, "learner": {"update_fraction": 0.2}},
        "limiter (actors wait 50% for samples/insert 1.9 to reach the band 2-8)", "a lower --replay.samples-per-insert-low"),
    "a busy replay": (
        {"replay": {"busy_fraction": 0.93}, "learner": {"data_wait_fraction": 0.5, "update_fraction": 0.5}},
        "replay (busy 93%)", "smaller batches"),
    "late batches on busy cores": (
        {"learner": LATE, "cores_busy": 0.98}, "processor (all 8 cores busy, learner 58% in updates, 40% waiting)", "would"),
    "late batches on idle cores": ({"learner": LATE}, "batches (", "--learner.prefetch"),
    "no process waits": ({}, "none (learner 90% in updates, no process waits)", "a faster learner device"),
    "a learner that does nothing but update": (
        {"learner": {"update_fraction": 0.99, "data_wait_fraction": 0.0}, "cores_busy": 0.99},
        "learner (updates take 99% of its time, no process waits) · try a faster device", "only have to wait"),
    "a band that ends below its use": (
        {"replay": {"sample_hold_fraction": 0.8, "band_low": 0.1, "band_high": 0.5, "samples_per_insert": 0.5},
         "learner": {"update_fraction": 0.2}, "cores_busy": 0.99},
        "limiter (learner waits 80%, samples/insert 0.5 is at the end of the band 0.1-0.5)",
        "try a higher --replay.samples-per-insert-high"),
    "a starved learner": (
        {"learner": STARVED}, "processor (learner waits 50% of the time for one of 8 cores)", "a GPU for the learner"),
    "starved actors": (
        {"actor": STARVED, "learner": {"update_fraction": 0.2}}, "processor (actors wait 50% of the time for one of 8 cores)",
        "try fewer actors, nothing else beside the run or more cores"),
    "starved actors and a learner that works": (
        {"actor": STARVED}, "processor (", "nothing else beside the run, more cores or a GPU for the learner"),
    "starved actors, and the band holds the learner": (
        {"actor": STARVED, "replay": {"sample_hold_fraction": 0.98}, "learner": {"update_fraction": 0.01}, "cores_busy": 0.99},
        "simulators (", "a higher --replay.samples-per-insert-high (now 8)"),
    "the same with a band that ends low": (
        {"actor": STARVED, "replay": {"sample_hold_fraction": 0.98, "band_high": 0.5}, "learner": {"update_fraction": 0.01}},
        "limiter (", "a higher --replay.samples-per-insert-high"),
    "starved actors, and the band holds them": (
        {"actor": STARVED, "replay": {"insert_hold_fraction": 0.5}, "learner": {"update_fraction": 0.2}},
        "limiter (", "a lower --replay.samples-per-insert-low"),
    "everyone starved, and the band holds the learner": (
        {"actor": STARVED, "replay": {"sample_hold_fraction": 0.98}, "learner": {"update_fraction": 0.01, **STARVED}},
        "processor (", "or more cores"),
    "a learner that compiles": (
        {"learner": {"compiling": 1.0, "updates": 1.0, "update_fraction": 0.0}, "cores_busy": 1.0}, "compiling ·", "next start"),
    "one that has compiled": ({"learner": {"compiling": 0.0}}, "none (", "device"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_the_sentence_names_the_bottleneck_and_what_to_change(case: str) -> None:
    changed, begins, ends = CASES[case]
    text = verdict(**changed)
    assert text.startswith(begins) and text.endswith(ends), text


def test_without_records_it_says_that_figures_are_to_come() -> None:
    text = bottleneck([{}, {}], {}, {}, min_size=5_000, envs_per_actor=4, cores=2, cores_busy=None, band=True, advice={})
    assert text.startswith("starting ·")


@pytest.mark.parametrize("advice", [{}, {"learner": "fewer minutes", "actors": "try turning it"}], ids=["without", "with"])
@pytest.mark.parametrize("busy", [0.9, 0.3])
def test_where_each_step_is_drawn_once_there_is_no_advice_about_a_band(advice: dict[str, str], busy: float) -> None:
    replay = {"band_low": 0.0, "band_high": 0.0, "samples_per_insert": 0.0}
    slow = verdict({"wait_credit_fraction": 0.6}, replay, {"update_fraction": busy}, band=False, advice=advice)
    assert slow.startswith(f"learner (updates take {busy:.0%} of its time, actors wait 60% of theirs) · try ")
    assert slow.endswith("fewer minutes or a faster device" if advice else "a faster device or a smaller batch")
    fast = verdict(replay=replay | BLOCKED, learner=FEW, cores_busy=0.99, band=False, advice=advice)
    assert fast.startswith("simulators (") and "samples-per-insert" not in slow + fast
    assert fast.endswith("more actors will not help; try turning it" if advice else "try more or faster cores")


@pytest.mark.parametrize(
    ("learner", "sentence"),
    [
        ({}, "starting · "),
        ({"updates": 9.0, "update_fraction": 0.8, "data_wait_fraction": 0.1}, "learner (updates take 80% of its time) · "),
        ({"updates": 9.0, "update_fraction": 0.5, "data_wait_fraction": 0.4}, "replay (busy 20%, learner waits 40%) · "),
    ],
)
def test_without_actors_replay_or_the_learner_is_the_bottleneck(learner: dict[str, float], sentence: str) -> None:
    given = {"envs_per_actor": 4, "cores": 2, "cores_busy": None, "band": True, "advice": {}}
    text = bottleneck([], REPLAY, learner, min_size=0, offline=True, **given)  # type: ignore[arg-type]
    assert text.startswith(sentence)


def test_replays_busy_share_is_what_its_waits_leave() -> None:
    """Of an older version, which has not recorded it."""
    replay = {name: value for name, value in REPLAY.items() if name != "busy_fraction"} | {"idle_fraction": 0.05}
    learner, given = (
        LEARNER | {"data_wait_fraction": 0.5},
        {"min_size": 5_000, "envs_per_actor": 4, "cores": 8, "cores_busy": 0.5},
    )
    text = bottleneck([ACTOR], replay | {"sample_hold_fraction": 0.05}, learner, **given, band=True, advice={})  # type: ignore[arg-type]
    assert text.startswith("replay (busy 90%)")
