"""Hosts are killed, their cables are pulled, the supervisor is killed, the line breaks: every step is there, once and whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.hosts.machines import ACTORS, machines, machines_behind_line
from tests.chaos.rows import Row

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
ELSEWHERE_SECONDS, GONE_SECONDS = 15.0, 3.0
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 60.0


def lengths(count: int) -> list[float]:
    """Of cuts: each factor between the shortest and the longest is as likely."""
    chance = random.Random(1)
    return [SHORTEST_SECONDS * (LONGEST_SECONDS / SHORTEST_SECONDS) ** chance.random() for _ in range(count)]


@pytest.mark.row(
    "H1",
    "a host is killed (kill -9): its agent, or all of its processes at once",
    "10 times: at work elsewhere <= 15 s (p95), lost = doubled = torn = 0, nothing of the host left after 3 s",
)
def test_actors_of_killed_hosts_work_elsewhere(row: Row, tmp_path: Path) -> None:
    kills = row.times(0, 10)
    with machines(tmp_path) as run:
        for number in range(kills):
            run.kill_host(everything=number % 2 == 0)
        verdict, seen, late = run.down(), run.seen, run.seen.elsewhere_p95
    row.measured(
        verdict.text, kills=kills, elsewhere_p95_seconds=late, gone_seconds=max(seen.gone), **seen.left, **verdict.figures
    )
    assert late <= ELSEWHERE_SECONDS and max(seen.gone) <= GONE_SECONDS and not any(seen.left.values())
    assert verdict.sound and len(verdict.acknowledged) > 100 * kills


@pytest.mark.row(
    "H2",
    "a host's cable is pulled for 5 to 60 s",
    "10 times: at work elsewhere <= 15 s (p95), lost = doubled = torn = 0, no old actor is acknowledged anything afterwards",
)
def test_actors_behind_a_cut_link_are_replaced_and_acknowledged_nothing_more(row: Row, tmp_path: Path) -> None:
    cuts = lengths(row.times(0, 10))
    with machines(tmp_path) as run:
        for seconds in cuts:
            run.cut_link(seconds)
        verdict, seen, late = run.down(), run.seen, run.seen.elsewhere_p95
    row.measured(
        f"cut for {', '.join(f'{seconds:.0f}' for seconds in cuts)} s: {verdict.text}",
        elsewhere_p95_seconds=late,
        **seen.behind_cuts,
        **verdict.figures,
    )
    assert late <= ELSEWHERE_SECONDS and seen.abandoned and seen.old >= seen.abandoned and not seen.acknowledged
    assert verdict.sound and len(verdict.acknowledged) > 100 * len(cuts)


@pytest.mark.row(
    "H3", "the supervisor is killed (kill -9) and started again", "20 times: pids of actors on hosts unchanged, all steps there"
)
def test_hosts_outlive_their_supervisor(row: Row, tmp_path: Path) -> None:
    kills = row.times(0, 20)
    with machines(tmp_path) as run:
        before = {name: run.pid(name) for name in ACTORS}
        changed = 0
        for _ in range(kills):
            run.kill()
            run.start()
            run.settle()
            changed += sum(run.pid(name) != before[name] for name in ACTORS)
        verdict = run.down()
    row.measured(verdict.text, kills=kills, pids_changed=changed, **verdict.figures)
    assert not changed and verdict.lives == len(ACTORS)
    assert verdict.sound and len(verdict.acknowledged) > 100 * kills


@pytest.mark.row(
    "H4",
    "H1 and H2 with a host behind a line of 20 ms where 1% of sends break the connection",
    "at work elsewhere <= 15 s (p95), lost = doubled = torn = 0, no old actor is acknowledged anything afterwards",
)
def test_a_line_that_breaks_changes_nothing(row: Row, tmp_path: Path) -> None:
    strikes = row.times(0, 6, 20)
    with machines_behind_line(tmp_path) as (run, line):
        for number, seconds in enumerate(lengths(strikes)):
            if number % 3 == 1:
                run.cut_link(seconds)
            else:
                run.kill_host(everything=number % 2 == 0)
        verdict, seen, late = run.down(), run.seen, run.seen.elsewhere_p95
        passed = line.end()
    row.measured(
        verdict.text,
        strikes=strikes,
        connections=passed["connections"],
        broken=passed["resets"],
        elsewhere_p95_seconds=late,
        **seen.left,
        **seen.behind_cuts,
        **verdict.figures,
    )
    assert passed["resets"] >= strikes and late <= ELSEWHERE_SECONDS and not any(seen.left.values())
    assert seen.abandoned and not seen.acknowledged and verdict.sound
