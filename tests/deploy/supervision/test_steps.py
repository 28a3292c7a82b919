from deploy.supervision.steps import StepCount
from transport.messages.control import Progress


def report(incarnation: int, steps: int, restored: int = 0) -> Progress:
    return Progress("replay", incarnation, "ready", 1, {}, steps, restored)


def test_a_replay_that_restores_counts_from_the_first_step_of_the_run_on() -> None:
    count = StepCount(0)
    for steps in (10, 500):
        count.on_progress(report(1, steps))
    count.on_progress(report(2, 498, restored=498))  # two steps were not acknowledged
    assert count.total == 498
    count.on_progress(report(2, 700, restored=498))
    assert count.total == 700


def test_a_replay_that_keeps_nothing_counts_on_from_what_was_known() -> None:
    count = StepCount(1_000)
    count.on_progress(report(1, 300))
    count.on_progress(report(2, 0))
    count.on_progress(report(2, 50))
    assert count.total == 1_350
