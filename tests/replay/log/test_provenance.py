"""Whose an item is, and a log without one actor."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.log.journal import Journal
from replay.log.provenance import NotThere, actors, purge, trace
from replay.log.segments import segments
from replay.table.ring import Ring
from tests.replay.examples import every_item, make_spec, stream_chunks
from tests.replay.table.test_table import draw
from transport.compression import crc32, pack_chunk
from transport.messages.replay import Insert

SPEC = make_spec(length=4, stack=2, n_step=2)
CHUNKS = stream_chunks(SPEC, {5: "truncated", 40: "terminated"}, 200)
CONFIG = ReplayConfig(capacity=2_000, min_size=1)


def opened(folder: Path) -> tuple[Ring, Journal]:
    table = Ring(SPEC, CONFIG, seed=0)
    return table, Journal(folder, table, CONFIG, lambda: False)


def values_by_key(table: Ring) -> dict[int, list[float]]:
    """What the selector holds of each chunk's items."""
    state = table.state()
    return dict(zip(state.chunk_keys.tolist(), state.selector.values.reshape(-1, 4).tolist(), strict=True))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A log of 40 chunks of two actors, whose items have priorities of their own."""
    table, journal = opened(tmp_path)
    journal.log._segment_chunks = 16
    for number, chunk in enumerate(CHUNKS[:40]):
        actor, parts = number % 2, pack_chunk(SPEC, chunk)
        journal.append(f"actor-{actor}", 70 + actor, Insert(number // 2, 3, chunk.length, crc32(parts)), parts)
        table.insert(chunk)
    keys = every_item(table)["key"]
    table.update_priorities(keys, keys.astype(np.float32) + 1)
    journal.close(dict)
    return tmp_path


def test_every_item_that_can_be_drawn_is_traced_to_the_actor_that_sent_it(folder: Path) -> None:
    table, journal = opened(folder)
    items = every_item(table)
    journal.close(dict)
    for key, version in zip(items["key"].tolist(), items["policy_version"].tolist(), strict=True):
        origin, chunk = trace(folder, SPEC, key), key // 4
        assert origin[:6] == (key, f"actor-{chunk % 2}", 70 + chunk % 2, chunk // 2, 3, key % 4)
        assert origin.policy_version == version and (folder / origin.segment).is_file()
    for key in (-1, 4 * 40, 10**15):
        with pytest.raises(NotThere, match="not in the log"):
            trace(folder, SPEC, key)


def test_a_sequence_is_traced_to_its_chunk(tmp_path: Path) -> None:
    spec = make_spec(length=4, stack=2, n_step=2, unit="sequences")
    table = Ring(spec, CONFIG, seed=0)
    journal = Journal(tmp_path, table, CONFIG, lambda: False)
    for number, chunk in enumerate(CHUNKS[:10]):
        parts = pack_chunk(spec, chunk)
        journal.append(f"actor-{number % 3}", 7, Insert(number // 3, 3, chunk.length, crc32(parts)), parts)
        table.insert(chunk)
    journal.close(dict)
    for key in draw(spec, table, 50)["key"].tolist():
        assert trace(tmp_path, spec, key)[:6] == (key, f"actor-{key % 3}", 7, key // 3, 3, 0)
    with pytest.raises(NotThere, match="not in the log"):
        trace(tmp_path, spec, 10)


def test_a_purge_takes_one_actor_and_leaves_keys_and_priorities_of_the_others(folder: Path) -> None:
    before, journal = opened(folder)
    wanted = values_by_key(before)
    items = every_item(before)
    journal.close(dict)
    assert actors(folder, SPEC) == {"actor-0": 20, "actor-1": 20}
    assert purge(folder, SPEC, "actor-1") == (20, 80)
    assert actors(folder, SPEC) == {"actor-0": 20} and all(path.stat().st_size for path in segments(folder))
    table, journal = opened(folder)
    table.check_invariants()
    others = items["key"][items["key"] // 4 % 2 == 0]
    assert np.array_equal(every_item(table)["key"], others) and table.next_key == before.next_key
    assert values_by_key(table) == {key: wanted[key] for key in set((others // 4).tolist())}
    assert journal.next_sequence("actor-0", 70) == 20, "nobody is taken twice"
    assert purge(folder, SPEC, "actor-1") == (0, 0)
    journal.close(dict)


@pytest.mark.parametrize("order", [("actor-0", "actor-1"), ("actor-1", "actor-0")])
def test_a_purge_of_the_newest_chunks_is_not_taken_for_a_loss(order: tuple[str, str], folder: Path) -> None:
    for actor in order:
        assert purge(folder, SPEC, actor) == (20, 80)
        table, journal = opened(folder)
        assert journal.figures()["missing_chunks"] == 0 and table.next_key == 40
        assert [journal.next_sequence(f"actor-{number}", 70 + number) for number in (0, 1)] == [20, 20]
        journal.close(dict)
    assert table.size == 0


def test_chunks_that_a_purged_log_loses_later_are_missing(folder: Path) -> None:
    purge(folder, SPEC, "actor-1")
    table, journal = opened(folder)
    parts = pack_chunk(SPEC, CHUNKS[40])
    journal.append("actor-0", 70, Insert(20, 3, CHUNKS[40].length, crc32(parts)), parts)
    table.insert(CHUNKS[40])
    journal.close(dict)
    segments(folder)[-1].unlink()
    table, journal = opened(folder)
    assert journal.figures()["missing_chunks"] == 1 and table.next_key == 41
    journal.close(dict)
