"""Hosts are killed, their cables are pulled, the supervisor is killed, the line breaks: every step is there, once and whole."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.hosts.machines import ACTORS, machines
from tests.chaos.rows import Row

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
ELSEWHERE_SECONDS, GONE_SECONDS = 15.0, 3.0
SHORTEST_SECONDS, LONGEST_SECONDS = 5.0, 60.0
ELSEWHERE = "at work elsewhere <= 15 s (p95), lost = doubled = torn = 0"
FENCED = "no old actor is acknowledged anything afterwards"


def lengths(count: int) -> list[float]:
    """Seconds of cuts, spread evenly over the orders of magnitude."""
    chance = random.Random(1)
    return [SHORTEST_SECONDS * (LONGEST_SECONDS / SHORTEST_SECONDS) ** chance.random() for _ in range(count)]


@pytest.mark.parametrize(
    ("strikes", "most_strikes", "behind_line"),
    [
        pytest.param(
            "ka", (6, 10), False, id="killed",
            marks=pytest.mark.row(
                "H1",
                "a host is killed (kill -9): its agent, or all of its processes at once",
                f"{ELSEWHERE}, nothing of the host left after 3 s",
            ),
        ),
        pytest.param(
            "c", (5, 10), False, id="cut",
            marks=pytest.mark.row("H2", "a host's cable is pulled for 5 to 60 s", f"{ELSEWHERE}, {FENCED}"),
        ),
        pytest.param(
            "kca", (6, 20), True, id="line",
            marks=pytest.mark.row(
                "H4",
                "H1 and H2 with a host behind a line of 20 ms where 1% of sends break the connection",
                f"{ELSEWHERE}, {FENCED}",
            ),
        ),
    ],
)  # fmt: skip
def test_actors_of_struck_hosts_work_elsewhere_and_are_acknowledged_nothing_more(
    row: Row, tmp_path: Path, strikes: str, most_strikes: tuple[int, int], behind_line: bool
) -> None:
    """`strikes`, over and over: k kills everything on a host, a its agent alone, c cuts its link."""
    count = row.times(0, *most_strikes)
    with machines(tmp_path, behind_line) as run:
        for number, seconds in enumerate(lengths(count)):
            strike = strikes[number % len(strikes)]
            if strike == "c":
                run.cut_link(seconds)
            else:
                run.kill_host(everything=strike == "k")
        verdict, seen, late = run.down(), run.seen, run.seen.elsewhere_p95
        passed = run.line.end() if run.line else {}
    gone = max(seen.gone, default=0.0)
    row.measured(verdict.text, strikes=count, elsewhere_p95_seconds=late, gone_seconds=gone, **passed)
    row.measured(**seen.left, **seen.behind_cuts, **verdict.figures)
    assert late <= ELSEWHERE_SECONDS and not any(seen.left.values()) and not seen.acknowledged
    assert (gone <= GONE_SECONDS or behind_line) and bool(seen.abandoned) == ("c" in strikes) and seen.old >= seen.abandoned
    assert passed.get("resets", 0) >= count * behind_line
    assert verdict.sound and len(verdict.acknowledged) > 100 * count


@pytest.mark.row(
    "H3", "the supervisor is killed (kill -9) and started again", "10 times: pids of actors on hosts unchanged, all steps there"
)
def test_hosts_outlive_their_supervisor(row: Row, tmp_path: Path) -> None:
    kills, changed = row.times(0, 10, 20), 0
    with machines(tmp_path) as run:
        before = {name: run.pid(name) for name in ACTORS}
        for _ in range(kills):
            run.kill()
            run.start()
            run.settle()
            changed += sum(run.pid(name) != before[name] for name in ACTORS)
        verdict = run.down()
    row.measured(verdict.text, kills=kills, pids_changed=changed, **verdict.figures)
    assert not changed and verdict.lives == len(ACTORS)
    assert verdict.sound and len(verdict.acknowledged) > 100 * kills
