"""Replay is killed again and again, under load: what it acknowledged is there, once."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from tests.chaos.links import Feeders
from tests.chaos.rows import Row
from tests.chaos.streams import counting_replay, counting_spec
from tests.harness.replay import ReplayProcess

pytestmark = [pytest.mark.chaos, pytest.mark.alone]
ACTORS = 4
RESUME_SECONDS = 5.0
MOMENTS = ("between_log_and_table", "inside_a_record")
SPEC = counting_spec()


@pytest.mark.row(
    "R3", "replay is killed (kill -9)", "acknowledged then lost = 0, doubled = 0; actors resume <= 5 s after it is bound"
)
def test_what_replay_acknowledged_outlives_it(row: Row, tmp_path: Path) -> None:
    kills = row.times(2, 32)
    chance = random.Random(3)
    config = counting_replay(capacity=2_000_000, state_seconds=0.5)
    slowest = 0.0
    with Feeders(tmp_path, SPEC) as feeders, ReplayProcess(tmp_path / "run", SPEC, config) as replay:
        feeders.log = replay.run_dir.segments
        replay.start()
        feeders.until(lambda: replay.bound, "replay bound")
        feeders.add(replay.address, ACTORS)
        for kill in range(kills):
            if kill % 2:  # at the worst of moments: what it has written down it has not acknowledged
                replay.start("tests.flow.dying_replay", MOMENTS[kill // 2 % 2], str(chance.randrange(10, 60)))
                feeders.until(lambda: replay.dead, "replay dies by itself", 60)
            else:
                enough = sum(feeders.acknowledged) + chance.randrange(20, 4000)
                feeders.until(lambda enough=enough: sum(feeders.acknowledged) > enough, "some steps more")  # type: ignore[misc]
            replay.kill()
            feeders.turn()  # into the void
            if kill % 2 or kill + 1 == kills:
                replay.start()
                feeders.until(lambda: replay.bound, "replay bound again")
                slowest = max(slowest, feeders.all_go_on())
        feeders.drain()
        replay.kill()
        verdict = feeders.verdict()
        replay.start()
        feeders.until(lambda: replay.bound, "a last life", feeding=False)
        restored = int(re.findall(r"restored ([\d,]+) items", replay.text)[-1].replace(",", ""))
    row.measured(verdict.text, kills=kills, slowest_resume_seconds=slowest, restored=restored, **verdict.figures)
    assert verdict.sound and len(verdict.lost) == 0
    assert restored == len(verdict.stored) and replay.text.count("(1 torn)") >= kills // 4
    assert slowest <= row.limit(RESUME_SECONDS)
