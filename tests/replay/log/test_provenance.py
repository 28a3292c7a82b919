"""Whose an item is, and a log without one actor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.log.provenance import NotThere, actors, purge, trace
from replay.log.segments import segments
from tests.replay.examples import Logged, draw, every_item, make_spec, stream_chunks

SPEC = make_spec(length=4, stack=2, n_step=2)
CHUNKS = [replace(chunk, stream=3) for chunk in stream_chunks(SPEC, {5: "truncated", 40: "terminated"}, 200)]
CONFIG = ReplayConfig(capacity=2_000, min_size=1)


def opened(folder: Path) -> Logged:
    return Logged(folder, SPEC, CONFIG)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of 40 chunks of two actors, whose items have priorities of their own."""
    logged = opened(tmp_path)
    logged.journal.log._segment_chunks = 16
    for number, chunk in enumerate(CHUNKS[:40]):
        logged.append(chunk, number // 2, f"actor-{number % 2}", 70 + number % 2)
    keys = every_item(logged.ring)["key"]
    logged.ring.update_priorities(keys, keys.astype(np.float32) + 1)
    logged.stop()
    return tmp_path


def test_every_item_that_can_be_drawn_is_traced_to_the_actor_that_sent_it(folder: Path) -> None:
    logged = opened(folder)
    items = every_item(logged.ring)
    logged.stop()
    for key, version in zip(items["key"].tolist(), items["policy_version"].tolist(), strict=True):
        origin, chunk = trace(folder, SPEC, key), key // 4
        assert origin[:6] == (key, f"actor-{chunk % 2}", 70 + chunk % 2, chunk // 2, 3, key % 4)
        assert origin.policy_version == version and (folder / origin.segment).is_file()
    for key in (-1, 4 * 40, 10**15):
        with pytest.raises(NotThere, match="not in the log"):
            trace(folder, SPEC, key)


def test_a_sequence_is_traced_to_its_chunk(tmp_path: Path) -> None:
    spec = make_spec(length=4, stack=2, n_step=2, unit="sequences")
    logged = Logged(tmp_path, spec, CONFIG)
    for number, chunk in enumerate(CHUNKS[:10]):
        logged.append(chunk, number // 3, f"actor-{number % 3}")
    logged.stop()
    for key in draw(logged.ring, 50)["key"].tolist():
        assert trace(tmp_path, spec, key)[:6] == (key, f"actor-{key % 3}", 7, key // 3, 3, 0)
    with pytest.raises(NotThere, match="not in the log"):
        trace(tmp_path, spec, 10)


def test_a_purge_takes_one_actor_and_leaves_keys_and_priorities_of_the_others(folder: Path) -> None:
    before = opened(folder)
    wanted, items = before.values(), every_item(before.ring)
    before.stop()
    assert actors(folder, SPEC) == {"actor-0": 20, "actor-1": 20}
    assert purge(folder, SPEC, "actor-1") == (20, 80)
    assert actors(folder, SPEC) == {"actor-0": 20} and all(path.stat().st_size for path in segments(folder))
    after = opened(folder)
    after.ring.check_invariants()
    others = items["key"][items["key"] // 4 % 2 == 0]
    assert np.array_equal(every_item(after.ring)["key"], others) and after.ring.next_key == before.ring.next_key
    assert after.values() == {key: wanted[key] for key in set((others // 4).tolist())}
    assert after.journal.next_sequence("actor-0", 70) == 20, "nobody is taken twice"
    assert purge(folder, SPEC, "actor-1") == (0, 0)
    after.stop()


@pytest.mark.parametrize("order", [("actor-0", "actor-1"), ("actor-1", "actor-0")])
def test_a_purge_of_the_newest_chunks_is_not_taken_for_a_loss(order: tuple[str, str], folder: Path) -> None:
    for actor in order:
        assert purge(folder, SPEC, actor) == (20, 80)
        logged = opened(folder)
        assert logged.journal.figures()["missing_chunks"] == 0 and logged.ring.next_key == 40
        assert [logged.journal.next_sequence(f"actor-{number}", 70 + number) for number in (0, 1)] == [20, 20]
        logged.stop()
    assert logged.ring.size == 0


def test_chunks_that_a_purged_log_loses_later_are_missing(folder: Path) -> None:
    purge(folder, SPEC, "actor-1")
    logged = opened(folder)
    logged.append(CHUNKS[40], 20, "actor-0", 70)
    logged.stop()
    segments(folder)[-1].unlink()
    logged = opened(folder)
    assert logged.journal.figures()["missing_chunks"] == 1 and logged.ring.next_key == 41
    logged.stop()
