"""Human steps: kept although the table has evicted them, drawn with their share, and found again after a restart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from learner.feed.base import mean_version
from replay.config import ReplayConfig, ReplayProcess
from replay.server.server import make_tables
from replay.shards import KEY_BITS
from replay.table.inbox import Writer
from replay.table.layout import layout
from tests.replay.examples import make_spec, stream_chunks
from transport.compression import crc32, pack_chunk
from transport.experience import PERSON, Chunk, ExperienceSpec
from transport.messages.fields import MOST_SHARDS
from transport.messages.replay import Insert, SampleRequest
from transport.metrics import Metrics

SPEC = make_spec(length=4, stack=2, n_step=2)
CONFIG = ReplayConfig(
    capacity=40,
    min_size=1,
    samples_per_insert_low=0.0,
    samples_per_insert_high=sys.float_info.max,
    human_share=0.25,
    human_capacity=24,
)
MINE = range(21, 31)  # positions, which begin and end within chunks


opened: list[Table] = []


class Table:
    """One start of replay's tables. `position` of each row says which step it is."""

    def __init__(self, folder: Path, config: ReplayConfig = CONFIG, spec: ExperienceSpec = SPEC) -> None:
        self.metrics, self.spec = Metrics(), spec
        made = make_tables(spec, ReplayProcess(0, config), self.metrics, folder / "log", lambda: False, None, folder / "human")
        self.inbox, self.items, self.journal = made.inbox, made.items, made.journal
        assert self.items is not None and self.journal is not None and self.items.human_steps is not None
        self.human_steps = self.items.human_steps
        self.writer = Writer("actor-0", 7, 1, b"", 0, 0)
        opened.append(self)

    def insert(self, chunks: list[Chunk]) -> None:
        assert self.items is not None
        for chunk in chunks:
            parts = pack_chunk(self.spec, chunk)
            self.inbox.put(self.writer, Insert(self.writer.received, 0, chunk.length, crc32(parts)), parts)
            self.items.insert()

    def draw(self, batch: int = 40) -> dict[str, np.ndarray]:
        assert self.items is not None
        arrangement = layout(self.spec, batch)
        arrays = arrangement.view(np.zeros(arrangement.slot_bytes, np.uint8))
        assert self.items.draw(SampleRequest(0, 1), arrays) is not None
        return arrays

    def drawn(self, batches: int = 40) -> tuple[np.ndarray, np.ndarray]:
        """Positions and keys of what many batches hold."""
        found = [self.draw() for _ in range(batches)]
        position = np.concatenate([each["observation/position"][:, self.spec.stack - 1] for each in found])
        return position.astype(int), np.concatenate([each["key"] for each in found])

    def stop(self) -> None:
        opened.remove(self)
        assert self.journal is not None
        self.journal.close(dict)
        assert self.human_steps.close() == ""


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """Whose logs are closed at the end, if the test has not done so."""
    opened.clear()
    yield tmp_path
    for table in list(opened):
        table.stop()


def steered(spec: ExperienceSpec = SPEC, mine: range = MINE, ends: dict[int, str] | None = None) -> list[Chunk]:
    chunks = stream_chunks(spec, ends or {}, 200)
    for chunk in chunks:
        position, version = chunk.columns["position"], chunk.columns["policy_version"]
        version[np.isin(position, mine)] = PERSON
    return chunks


def test_what_the_table_has_evicted_is_drawn_with_its_share_also_after_a_restart(folder: Path) -> None:
    first = Table(folder)
    first.insert(steered())
    for table in (first, None):
        if table is None:
            first.stop()
            table = Table(folder)
        position, keys = table.drawn()
        own = position >= 100  # of the newest: the ring holds 40 steps
        assert set(position[~own]) == set(MINE), "all of them, and nothing else of their chunks"
        assert np.mean(~own) == pytest.approx(0.25), "ten of forty, in each batch"
        assert len(set(keys[own]) & set(keys[~own])) == 0 and (keys >= 0).all()
        assert table.human_steps.ring.update_priorities(keys, np.ones(len(keys))) == (~own).sum()
    assert first.metrics.value("human_steps") == len(MINE)


def test_without_human_steps_nothing_is_made_and_with_few_steps_none_is_in_a_batch_many_times(folder: Path) -> None:
    table = Table(folder)
    table.insert(steered(mine=range(0)))
    assert not (folder / "human").exists() and table.human_steps.share(0) == 0.0
    assert (table.drawn(5)[0] >= 100).all()
    table.insert(steered(mine=range(50, 52)))
    position, _ = table.drawn(20)
    assert np.isin(position, (50, 51)).sum() == 20 * 2


def test_the_newest_human_steps_stay(folder: Path) -> None:
    table = Table(folder)
    table.insert(steered(mine=range(10, 100)))
    position, _ = table.drawn()
    shown = position[position < 100]
    assert 16 <= len(set(shown)) <= 24 and max(shown) == 99, "of 24 that there may be"
    assert sum(path.stat().st_size for path in (folder / "human").rglob("*")) < 100_000


def test_sequences_with_human_steps_are_kept_as_a_whole(folder: Path) -> None:
    spec = make_spec(length=4, stack=1, n_step=2, unit="sequences")
    table = Table(folder, spec=spec)
    table.insert(steered(spec))
    arrays = table.draw(4)
    mine = (arrays["key"] >> KEY_BITS) >= MOST_SHARDS
    assert mine.sum() == 1 and (arrays["policy_version"][mine] == PERSON).any()
    assert table.human_steps.size == len(MINE) and len(table.human_steps.ring.state().chunk_keys) == 3
    keys = table.draw(40)["key"]
    assert ((keys >> KEY_BITS) >= MOST_SHARDS).sum() == 3, "not more than there are: none of them is in a batch many times"


def test_a_restart_of_replay_counts_on_what_was_sampled_of_them_too(folder: Path) -> None:
    table = Table(folder)
    table.insert(steered())
    table.draw()
    opened.remove(table)
    assert table.journal is not None and table.items is not None and table.items.ring.sampled_items < 40
    table.journal.close(lambda: {"sampled_items": 40.0})  # what the server has counted
    again = Table(folder)
    assert again.journal is not None and again.journal.counters["sampled_items"] == 40.0


def test_how_old_the_learners_experience_is_does_not_count_human_steps(folder: Path) -> None:
    table = Table(folder)
    table.insert(steered(mine=range(180, 190)))  # still among the table's own
    arrays = table.draw()
    versions = arrays["policy_version"][(arrays["policy_version"] != PERSON)]
    assert mean_version(arrays, SPEC) == pytest.approx(versions.mean()) and (arrays["policy_version"] == PERSON).any()
