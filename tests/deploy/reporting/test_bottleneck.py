from collections.abc import Mapping

import pytest

from deploy.reporting.bottleneck import bottleneck
from learner.algorithms.base import Limit

ACTOR = {"env_step_fraction": 0.95, "act_fraction": 0.03, "wait_credit_fraction": 0.0}
REPLAY = {
    "items": 50_000.0,
    "band_low": 2.0,
    "band_high": 8.0,
    "samples_per_insert": 4.0,
    "sample_hold_fraction": 0.0,
    "busy_fraction": 0.2,
}
LEARNER = {"updates": 100.0, "update_fraction": 0.9, "data_wait_fraction": 0.02}


def verdict(
    actors: list[dict[str, float]] | None = None,
    replay: dict[str, float] | None = None,
    learner: dict[str, float] | None = None,
    cores_busy: float | None = 0.5,
    band: bool = True,
    advice: Mapping[Limit, str] | None = None,
) -> str:
    return bottleneck(
        [ACTOR, ACTOR] if actors is None else actors,
        REPLAY | (replay or {}),
        LEARNER | (learner or {}),
        min_size=5_000,
        envs_per_actor=4,
        cores=8,
        cores_busy=cores_busy,
        band=band,
        advice=advice or {},
    )


def test_without_records_it_says_that_figures_are_to_come() -> None:
    text = bottleneck([{}, {}], {}, {}, min_size=5_000, envs_per_actor=4, cores=2, cores_busy=None, band=True, advice={})
    assert text.startswith("starting ·")


def test_before_the_first_batch_it_says_how_full_replay_is() -> None:
    assert verdict(replay={"items": 1200}, learner={"updates": 0}).startswith("filling replay 1,200/5,000 ·")


def test_a_learner_that_the_limiter_blocks_asks_for_more_actors() -> None:
    text = verdict(replay={"sample_hold_fraction": 0.6}, learner={"update_fraction": 0.3, "data_wait_fraction": 0.65})
    assert text == "simulators (actors 95% in env.step, learner waits 60%) · try more actors"


def test_more_actors_are_not_advised_when_all_cores_are_busy() -> None:
    text = verdict(replay={"sample_hold_fraction": 0.6}, learner={"update_fraction": 0.3}, cores_busy=0.99)
    assert text.startswith("simulators (")
    assert "more actors will not help; try a higher --replay.samples-per-insert-high (now 8)" in text


def test_actors_that_mostly_compute_the_policy_should_batch_more() -> None:
    slow = {"env_step_fraction": 0.2, "act_fraction": 0.75}
    text = verdict(actors=[slow, slow], replay={"sample_hold_fraction": 0.5})
    assert text.startswith("inference (actors 75% in the policy") and "--envs-per-actor, now 4" in text


@pytest.mark.parametrize("advice", [{}, {"learner": "fewer minutes", "actors": "try turning it"}], ids=["without", "with"])
@pytest.mark.parametrize("busy", [0.9, 0.3])
def test_where_each_step_is_drawn_once_there_is_no_advice_about_a_band(advice: Mapping[Limit, str], busy: float) -> None:
    replay = {"band_low": 0.0, "band_high": 0.0, "samples_per_insert": 0.0}
    slow = verdict([ACTOR | {"wait_credit_fraction": 0.6}], replay, {"update_fraction": busy}, band=False, advice=advice)
    assert slow.startswith(f"learner (updates take {busy:.0%} of its time, actors wait 60% of theirs) · try ")
    assert slow.endswith("fewer minutes or a faster device" if advice else "a faster device or a smaller batch")
    blocked, few = replay | {"sample_hold_fraction": 0.6}, {"update_fraction": 0.3}
    fast = verdict(replay=blocked, learner=few, cores_busy=0.99, band=False, advice=advice)
    assert fast.startswith("simulators (") and "samples-per-insert" not in slow + fast
    assert fast.endswith("more actors will not help; try turning it" if advice else "try more or faster cores")


def test_what_the_algorithm_advises_comes_first() -> None:
    text = verdict(
        [ACTOR | {"wait_credit_fraction": 0.4}], learner={"update_fraction": 0.97}, advice={"learner": "fewer quantiles"}
    )
    assert text.endswith("· try fewer quantiles or a faster device")


def test_actors_that_wait_for_a_busy_learner_name_the_learner() -> None:
    text = verdict(actors=[ACTOR | {"wait_credit_fraction": 0.4}], learner={"update_fraction": 0.97})
    assert text.startswith("learner (updates take 97% of its time, actors wait 40% of theirs) · try a faster device")


def test_actors_that_wait_for_an_idle_learner_name_the_band() -> None:
    text = verdict(replay={"insert_hold_fraction": 0.5, "samples_per_insert": 1.9}, learner={"update_fraction": 0.2})
    assert text == (
        "limiter (actors wait 50% for samples/insert 1.9 to reach the band 2-8) · try a lower --replay.samples-per-insert-low"
    )


def test_a_busy_replay_is_named_when_a_process_waits_for_it() -> None:
    text = verdict(replay={"busy_fraction": 0.93}, learner={"data_wait_fraction": 0.5, "update_fraction": 0.5})
    assert text.startswith("replay (busy 93%)")


def test_replays_busy_share_is_what_its_waits_leave() -> None:
    waits = {"idle_fraction": 0.05, "insert_hold_fraction": 0.0, "sample_hold_fraction": 0.05}
    replay = {name: value for name, value in REPLAY.items() if name != "busy_fraction"} | waits
    learner = LEARNER | {"data_wait_fraction": 0.5}
    text = bottleneck([ACTOR], replay, learner, min_size=5_000, envs_per_actor=4, cores=8, cores_busy=0.5, band=True, advice={})
    assert text.startswith("replay (busy 90%)")


def test_late_batches_on_busy_cores_name_the_processor() -> None:
    text = verdict(learner={"data_wait_fraction": 0.4, "update_fraction": 0.58}, cores_busy=0.98)
    assert text.startswith("processor (all 8 cores busy, learner 58% in updates, 40% waiting)")


def test_late_batches_on_idle_cores_ask_for_prefetch() -> None:
    text = verdict(learner={"data_wait_fraction": 0.4, "update_fraction": 0.58})
    assert text.startswith("batches (") and "--learner.prefetch" in text


def test_when_no_process_waits_both_sides_may_grow() -> None:
    assert verdict().startswith("none (learner 90% in updates, no process waits)")


def test_a_learner_that_does_nothing_but_update_is_the_limit_even_if_no_process_waits_yet() -> None:
    text = verdict(learner={"update_fraction": 0.99, "data_wait_fraction": 0.0}, cores_busy=0.99)
    assert text.startswith("learner (updates take 99% of its time, no process waits)") and "faster device" in text


def test_a_simulator_that_sleeps_leaves_its_core_to_more_actors() -> None:
    sleeps = ACTOR | {"processor_fraction": 0.05}
    text = verdict(actors=[sleeps], replay={"sample_hold_fraction": 0.6}, learner={"update_fraction": 0.3}, cores_busy=0.99)
    assert text == "simulators (actors 95% in env.step, learner waits 60%) · try more actors"


def test_a_band_that_ends_below_its_use_is_named_before_the_actors() -> None:
    replay = {"sample_hold_fraction": 0.8, "band_low": 0.1, "band_high": 0.5, "samples_per_insert": 0.5}
    text = verdict(replay=replay, learner={"update_fraction": 0.2}, cores_busy=0.99)
    assert text.startswith("limiter (learner waits 80%, samples/insert 0.5 is at the end of the band 0.1-0.5)")
    assert text.endswith("try a higher --replay.samples-per-insert-high")


def test_processes_that_wait_for_a_core_name_the_processor() -> None:
    starved = ACTOR | {"starved_fraction": 0.7}
    text = verdict(actors=[starved, starved], replay={"sample_hold_fraction": 0.6})
    assert text.startswith("processor (actors wait 70% of the time for one of 8 cores)") and "fewer actors" in text
    text = verdict(learner={"starved_fraction": 0.5})
    assert text.startswith("processor (learner waits 50% of the time for one of 8 cores)")


@pytest.mark.parametrize(
    ("replay", "learner", "limit", "advice"),
    [
        # The band holds the learner back.
        (
            {"sample_hold_fraction": 0.98},
            {"update_fraction": 0.01},
            "simulators",
            "a higher --replay.samples-per-insert-high (now 8)",
        ),
        (
            {"sample_hold_fraction": 0.98, "band_high": 0.5},
            {"update_fraction": 0.01},
            "limiter",
            "a higher --replay.samples-per-insert-high",
        ),
        # It holds the actors back.
        ({"insert_hold_fraction": 0.5}, {"update_fraction": 0.2}, "limiter", "a lower --replay.samples-per-insert-low"),
        # Nothing but cores is short.
        ({}, {"update_fraction": 0.2}, "processor", "nothing else beside the run or more cores"),
        ({}, {"update_fraction": 0.9}, "processor", "nothing else beside the run, more cores or a GPU for the learner"),
        ({"sample_hold_fraction": 0.98}, {"update_fraction": 0.01, "starved_fraction": 0.6}, "processor", "or more cores"),
    ],
)
def test_a_gpu_is_advised_to_a_learner_that_works_and_the_band_is_named_before_cores_where_it_holds_an_idle_one(
    replay: dict[str, float], learner: dict[str, float], limit: str, advice: str
) -> None:
    starved = ACTOR | {"starved_fraction": 0.5}
    text = verdict(actors=[starved, starved], replay=replay, learner=learner, cores_busy=0.99)
    assert text.startswith(f"{limit} (") and text.endswith(advice)


def test_while_the_learner_compiles_nothing_else_is_named() -> None:
    while_compiling = {"compiling": 1.0, "updates": 1.0, "update_fraction": 0.0, "data_wait_fraction": 0.0}
    assert verdict(replay={"sample_hold_fraction": 0.0}, learner=while_compiling, cores_busy=1.0).startswith("compiling ·")
    assert not verdict(learner={"compiling": 0.0}).startswith("compiling")
