"""Links that break, stall and lie: every chunk that was acknowledged arrives, once and whole."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.chaos.links import Served
from tests.chaos.message_proxy import Chances
from tests.chaos.rows import Row
from tests.chaos.streams import counting_spec

pytestmark = pytest.mark.chaos
SPEC = counting_spec()


def over(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.mark.row("R6", "connections are reset (RST) in mid-stream, for 1 s of every 5 s", "10 min: lost = doubled = 0")
def test_resets_lose_and_double_nothing(row: Row, tmp_path: Path) -> None:
    seconds = row.times(4, 90, 600)
    with Served(tmp_path, SPEC, capacity=4_000_000) as served:
        proxy = served.proxy()
        served.add(proxy.address, 4)
        served.until(lambda: all(served.acknowledged), "all have begun")
        end = over(seconds)
        while time.monotonic() < end:
            storm = over(1)
            while time.monotonic() < storm:
                proxy.cut(10_000)
                served.go_on(0.1)
                proxy.reset()
            before = time.monotonic()
            served.all_go_on()
            served.go_on(min(4, seconds - 1) - (time.monotonic() - before))
        served.drain()
        duplicates = int(served.metrics.value("duplicates"))
    verdict = served.verdict()
    row.measured(verdict.text, seconds=seconds, resets=proxy.resets, duplicates_dropped=duplicates, **verdict.figures)
    assert proxy.resets >= 10 * seconds / 5 and verdict.sound


@pytest.mark.row(
    "R9", "a quarter of requests and of answers is lost; others are doubled or late", "1e6 transitions: lost = doubled = 0"
)
def test_messages_lost_doubled_and_late_are_taken_once(row: Row, tmp_path: Path) -> None:
    steps = row.times(3_000, 100_000, 1_000_000)
    chances = Chances(drop=0.25, double=0.1, delay=0.1, delay_seconds=0.05)
    with Served(tmp_path, counting_spec(64), capacity=4_000_000) as served:
        proxy = served.message_proxy(chances, chances)
        served.add(proxy.address, 16)
        served.until(lambda: sum(served.acknowledged) >= steps, "so many steps", 6000)
        served.drain(120)
        duplicates, gaps = int(served.metrics.value("duplicates")), int(served.metrics.value("gaps"))
    verdict = served.verdict()
    lost = proxy.dropped["up"] + proxy.dropped["down"]
    row.measured(
        verdict.text,
        messages_lost=lost,
        messages_doubled=sum(proxy.doubled.values()),
        duplicates=duplicates,
        gaps=gaps,
        **verdict.figures,
    )
    assert lost > 0.2 * sum(proxy.seen.values()) and duplicates > 0 and len(verdict.acknowledged) >= steps
    assert verdict.sound
