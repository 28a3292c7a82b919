"""Links that break, stall and lie: every chunk that was acknowledged arrives, once and whole."""

from __future__ import annotations

import re
import time
from pathlib import Path

import psutil
import pytest
import zmq

from tests.chaos.links import Served
from tests.chaos.rows import Row, length
from tests.chaos.streams import counting_spec
from tests.harness.message_proxy import Chances
from tests.harness.waiting import Pauses
from transport.sockets import channel

pytestmark = pytest.mark.chaos
SPEC = counting_spec()
LARGE = counting_spec(chunk_length=16, side=84)  # 141 kB a chunk
ACTORS = 4
RESETS = 10  # of a storm, at least


def over(seconds: float) -> float:
    return time.monotonic() + seconds


@pytest.mark.row("R6", "connections are reset (RST) in mid-stream, for 1 s of every 5 s", "lost = doubled = 0")
def test_resets_lose_and_double_nothing(row: Row, tmp_path: Path) -> None:
    seconds = row.times(4, 45, 600)
    with Served(tmp_path, SPEC, capacity=4_000_000) as served:
        proxy = served.proxy()
        served.add(proxy.address, 4)
        served.until(lambda: all(served.acknowledged), "all have begun")
        end = over(seconds)
        while time.monotonic() < end:
            storm, enough = over(1), proxy.resets + RESETS  # on a busy machine connections come back more slowly
            while time.monotonic() < storm or proxy.resets < enough:
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
    assert proxy.resets >= RESETS * seconds / 5 and verdict.sound


@pytest.mark.row("R9", "a quarter of requests and of answers is lost; others are doubled or late", "lost = doubled = 0")
def test_messages_lost_doubled_and_late_are_taken_once(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = row.times(3_000, 50_000, 1_000_000)
    if length() == "short":
        monkeypatch.setattr("replay.client.writer.SILENCE_SECONDS", 0.2)  # most of the time is spent waiting for lost answers
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


@pytest.mark.alone
@pytest.mark.row("R7b", "replay reads nothing for 30 s while links have heartbeats", "0 disconnects")
def test_a_full_queue_is_not_taken_for_death(row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = row.times(3, 30)
    timeout_ms = 1200 if length() == "short" else channel.HEARTBEAT_TIMEOUT_MS
    faster = {zmq.HEARTBEAT_IVL: timeout_ms // 3, zmq.HEARTBEAT_TIMEOUT: timeout_ms, zmq.HEARTBEAT_TTL: timeout_ms}
    monkeypatch.setattr(channel, "HEARTBEATS", faster)
    with Pauses() as pauses, Served(tmp_path, LARGE, capacity=4_000_000) as served:
        proxy = served.proxy()
        served.add(proxy.address, ACTORS)
        served.until(lambda: all(served.acknowledged), "all have begun")
        end = over(seconds)
        while time.monotonic() < end:
            for feeder in served.feeders:
                feeder.turn()
            time.sleep(0.01)
        waiting = served.outstanding
        resumed = served.all_go_on()
        served.drain()
        disconnects = proxy.connections - ACTORS
    verdict = served.verdict()
    row.measured(
        verdict.text, seconds=seconds, chunks_waiting=waiting, disconnects=disconnects, resumed_seconds=resumed, **verdict.figures
    )
    assert waiting >= 8 * ACTORS, "the actors have sent all that they may"
    assert verdict.sound and (disconnects == 0 or pauses.longest > timeout_ms / 3000), f"stood still for {pauses.longest:.1f} s"


@pytest.mark.row(
    "R8",
    "nothing passes any more, and nobody is told; then it heals",
    "both ends report <= 5 s; growth of actors <= their window; flow <= 5 s after; lost = doubled = 0",
)
def test_a_silent_partition_is_reported_and_healed(row: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seconds = row.times(0, 30, 60)
    with Served(tmp_path, LARGE, capacity=100_000, state_seconds=3600.0) as served:  # memory of this process is the server's, too
        proxy = served.proxy()
        served.add(proxy.address, ACTORS)
        served.until(lambda: all(served.acknowledged), "all have begun")
        served.go_on(1)
        capsys.readouterr()
        before = psutil.Process().memory_info().rss
        proxy.set(blackhole=True)
        began, printed, told = time.monotonic(), "", {"replay": 0.0, "actors": 0.0}

        def both_told() -> bool:
            nonlocal printed
            printed += capsys.readouterr().out
            for end, line in (("replay", "no message from"), ("actors", "no answer from replay")):
                if not told[end] and len(re.findall(line, printed)) >= ACTORS:
                    told[end] = time.monotonic() - began
            return all(told.values())

        served.until(both_told, "both ends report")
        served.go_on(seconds - (time.monotonic() - began))
        grown = psutil.Process().memory_info().rss - before - proxy.held_bytes  # which is of this process as well
        proxy.set()
        healed = served.all_go_on(60)
        served.drain()
    verdict = served.verdict()
    window = sum(feeder.writer.credit + LARGE.chunk_bytes for feeder in served.feeders)
    reports = {f"{end}_reports_seconds": after for end, after in told.items()}
    row.measured(
        verdict.text, seconds=seconds, grown_bytes=grown, windows_bytes=window, flow_seconds=healed, **reports, **verdict.figures
    )
    assert max(told.values()) <= 5 and healed <= 5 and verdict.sound
    assert grown <= window


MATHIS = 1.22  # TCP's rate under loss p is at most MSS / RTT * 1.22 / sqrt(p) (Mathis et al. 1997, with its constant)
LINES = {
    "50 ms and 1% loss": (0.05, 0.01, 0.01, 0.0),
    "100 ms and 5% loss": (0.1, 0.02, 0.05, 1.0),
}


@pytest.mark.row(
    "R7",
    "a slow line that loses packets: 50 ms, 1%, 20 mbit; then 100 ms, 5%",
    "lost = doubled = 0, progress in every 10 s; flaps 0, at most 1/min on the second",
)
@pytest.mark.parametrize("line", LINES)
def test_a_slow_line_is_slow_and_nothing_else(row: Row, line: str, tmp_path: Path) -> None:
    """By a proxy: what TCP makes of loss is a lower rate and pauses of a round trip."""
    delay, jitter, loss, flaps_per_minute = LINES[line]
    seconds = row.times(0 if flaps_per_minute else 4, 60 if flaps_per_minute else 30, 900)
    spec = counting_spec(chunk_length=16, side=30) if length() == "short" else LARGE
    rate = min(20e6 / 8, 1448 / (2 * delay) * MATHIS / loss**0.5)
    with Pauses() as pauses, Served(tmp_path, spec, capacity=4_000_000) as served:
        proxy = served.proxy()
        proxy.set(
            delay_seconds=delay, jitter_seconds=jitter, bytes_per_second=rate, stall_probability=loss, stall_seconds=2 * delay
        )
        served.add(proxy.address, 2)
        served.all_go_on()
        passed, started, end, longest = proxy.passed_bytes, time.monotonic(), over(seconds), 0.0
        while time.monotonic() < end:
            began, before = time.monotonic(), sum(served.acknowledged)
            served.until(lambda before=before: sum(served.acknowledged) > before, "progress", 60)  # type: ignore[misc]
            longest = max(longest, time.monotonic() - began)
        flaps, speed = proxy.connections - 2, (proxy.passed_bytes - passed) / (time.monotonic() - started)
        served.drain(120)
    verdict = served.verdict()
    row.measured(
        f"{line}, {rate / 1e3:.0f} kB/s a connection: {verdict.text}",
        seconds=seconds,
        flaps=flaps,
        bytes_per_second=speed,
        longest_without_progress_seconds=longest,
        **verdict.figures,
    )
    assert verdict.sound and longest <= row.limit(10) and speed < 2.5 * rate
    assert flaps <= flaps_per_minute * seconds / 60 or pauses.longest > 1, f"stood still for {pauses.longest:.1f} s"
