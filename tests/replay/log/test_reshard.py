"""The experience of a run on other shards: every chunk once, with its priorities, whatever happens meanwhile."""

from __future__ import annotations

import errno
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from replay.config import ReplayConfig
from replay.log import reshard as module
from replay.log.files import open_regular
from replay.log.journal import ID_FILE, STATE_FILE
from replay.log.provenance import NotThere, actors, purge, trace
from replay.log.reshard import reshard
from replay.log.segments import LogRefused, scan, segments
from replay.log.shard_folders import log_folders, open_folder, shard_folder, shard_folders, stored_shards
from replay.shards import KEY_BITS, Shard, shard_of
from tests.replay.examples import Logged, make_spec, stream_chunks

SPEC = make_spec(length=4, stack=2, n_step=2)
ACTORS = tuple(f"actor-{index}" for index in range(7))
CHUNKS_EACH = 12

Name = tuple[str, int, int]  # actor, incarnation, sequence


class Life:
    """One start of all shards of a run."""

    def __init__(self, base: Path, shards: int) -> None:
        config = ReplayConfig(capacity=4_000, min_size=1, shards=shards).of_one_shard
        every = [Shard(index, shards) for index in range(shards)]
        self.parts = [Logged(open_folder(base, shard), SPEC, config, shard.index, shard) for shard in every]

    def insert(self, first: int, last: int) -> None:
        """Chunks `first` to `last` of all actors, in turn, each with priorities of its own."""
        chunks = stream_chunks(SPEC, {}, 4 * (last + 1))
        for sequence in range(first, last):
            for number, actor in enumerate(ACTORS):
                part = self.parts[shard_of(actor, len(self.parts)).index]
                keys = np.arange(4) + 4 * part.ring.next_key + part.ring._first_key
                part.append(chunks[sequence], sequence, actor, 7 + number)
                part.ring.update_priorities(keys, 1 + number + sequence / 100 + np.arange(4))

    def stop(self) -> None:
        for part in self.parts:
            part.stop(duplicates=3.0, inserted_chunks=float(part.ring.next_key))

    @property
    def counts(self) -> tuple[int, int]:
        """Items and inserted items of all shards."""
        return sum(part.ring.size for part in self.parts), sum(part.ring.inserted_items for part in self.parts)

    def priorities(self) -> Counter[float]:
        """The values of all items, however often each."""
        values = np.concatenate([part.ring.state().selector.values for part in self.parts])
        return Counter(np.round(values[values > 0], 9).tolist())


def lived(base: Path, shards: int, chunks: int) -> Life:
    """A run with so many chunks of each actor, stopped."""
    life = Life(base, shards)
    life.insert(0, chunks)
    life.stop()
    return life


def contents(base: Path) -> Counter[tuple[Name, bytes]]:
    """Every chunk in the logs that count, with its bytes."""
    found: Counter[tuple[Name, bytes]] = Counter()
    for folder in log_folders(base):
        for entry in scan(folder, SPEC).entries:
            with open_regular(entry.path) as file:
                file.seek(entry.offset)
                header = entry.header
                found[(header.writer, header.incarnation, header.sequence), file.read(sum(header.sizes))] += 1
    return found


@pytest.fixture
def base(tmp_path: Path) -> Path:
    lived(tmp_path, 2, CHUNKS_EACH)
    return tmp_path


def test_every_chunk_is_there_once_after_any_change(base: Path) -> None:
    before = contents(base)
    assert sum(before.values()) == len(before) == CHUNKS_EACH * len(ACTORS)
    life = Life(base, 2)
    counts, priorities = life.counts, life.priorities()
    life.stop()
    for shards in (3, 1, 4, 2):
        done = reshard(base, SPEC, shards, print)
        assert sum(done.chunks) == len(before) and len(done.chunks) == shards == stored_shards(base)
        assert contents(base) == before
        left = {path for folder in [base, *base.glob("*-of-*")] for path in segments(folder)}
        assert left == {path for folder in shard_folders(base, shards) for path in segments(folder)}
        for index, folder in enumerate(shard_folders(base, shards)):
            assert {shard_of(entry.header.writer, shards).index for entry in scan(folder, SPEC).entries} <= {index}
        life = Life(base, shards)
        assert life.counts == counts and life.priorities() == priorities
        actor = ACTORS[3]
        journal = life.parts[shard_of(actor, shards).index].journal
        assert journal.next_sequence(actor, 10) == CHUNKS_EACH, "nothing that is sent again is taken twice"
        life.stop()
    assert reshard(base, SPEC, 2, print).chunks == ()


def test_an_actors_chunks_keep_their_order(base: Path) -> None:
    reshard(base, SPEC, 1, print)
    order: dict[str, list[int]] = {}
    for entry in scan(base, SPEC).entries:
        order.setdefault(entry.header.writer, []).append(entry.header.sequence)
    assert order == {actor: list(range(CHUNKS_EACH)) for actor in ACTORS}
    ages = [entry.header.sequence for entry in scan(base, SPEC).entries]
    assert max(abs(np.array(ages) - np.sort(ages))) <= 1, "old chunks are evicted first"


def test_what_was_logged_after_the_last_save_is_counted(base: Path) -> None:
    life = Life(base, 2)
    life.insert(CHUNKS_EACH, CHUNKS_EACH + 3)
    for part in life.parts:
        part.kill()
    reshard(base, SPEC, 3, print)
    life = Life(base, 3)
    items = 4 * (CHUNKS_EACH + 3) * len(ACTORS)
    assert life.counts == (items, items)
    life.stop()


class Interrupted(Exception):
    pass


@pytest.mark.parametrize(
    ("before", "after", "moment", "call"),
    [
        *((2, after, moment, 1) for after in (1, 3) for moment in ("_write", "write_state", "note")),
        *((2, after, "_remove_all_but", 2) for after in (1, 3)),
        (1, 3, "_check_carried", 1),
    ],
)
def test_an_interruption_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: int, after: int, moment: str, call: int
) -> None:
    lived(tmp_path, before, 5)
    stored, calls = contents(tmp_path), 0

    def interrupt(*arguments: object) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise Interrupted

    with monkeypatch.context() as patch:
        patch.setattr(module, moment, interrupt)
        with pytest.raises(Interrupted):
            reshard(tmp_path, SPEC, after, print)
    assert contents(tmp_path) == stored and stored_shards(tmp_path) == (after if moment == "_remove_all_but" else before)
    reshard(tmp_path, SPEC, after, print)
    assert contents(tmp_path) == stored and stored_shards(tmp_path) == after


@pytest.mark.parametrize("target", [1, 3])
def test_a_disk_that_is_too_full_for_the_new_logs_is_left_as_it_was(
    base: Path, monkeypatch: pytest.MonkeyPatch, target: int
) -> None:
    before, files = contents(base), sorted(base.rglob("*"))

    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(module, "write_state", full)  # the chunks were written
        with pytest.raises(OSError, match="No space left"):
            reshard(base, SPEC, target, print)
    assert contents(base) == before
    assert [path for path in sorted(base.rglob("*")) if path not in files and path.name != ID_FILE] == []


def test_a_shard_refuses_experience_that_is_divided_otherwise(base: Path) -> None:
    with pytest.raises(LogRefused, match=r"is divided for 2 shards, not 4: see `headrace reshard`"):
        open_folder(base, Shard(0, 4))
    with pytest.raises(LogRefused, match="divided for 2 shards, not 1"):
        open_folder(base, Shard())


def test_a_folder_without_experience_takes_any_number(tmp_path: Path) -> None:
    assert open_folder(tmp_path, Shard(1, 4)) == tmp_path / "1-of-4"
    assert stored_shards(tmp_path) is None
    assert open_folder(tmp_path, Shard()) == tmp_path
    assert reshard(tmp_path, SPEC, 3, print).chunks == ()
    (tmp_path / "shards").write_text("many")
    with pytest.raises(LogRefused, match="shards is damaged"):
        stored_shards(tmp_path)


def test_one_shard_alone_leaves_no_trace_of_shards(tmp_path: Path) -> None:
    lived(tmp_path, 1, 2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.suffix != ".segment") == ["run_id", STATE_FILE]
    assert shard_folder(tmp_path, Shard()) == tmp_path


def test_trace_and_purge_know_all_shards(base: Path) -> None:
    for index, folder in enumerate(shard_folders(base, 2)):
        entry = scan(folder, SPEC).entries[5]
        origin = trace(base, SPEC, (index << KEY_BITS) + 4 * entry.header.key + 2)
        header = entry.header
        assert (origin.actor, origin.incarnation, origin.sequence) == (header.writer, header.incarnation, header.sequence)
        assert Path(origin.segment) == Path(f"{index}-of-2/{entry.path.name}")
    with pytest.raises(NotThere, match="is of shard 2, and the run has 2"):
        trace(base, SPEC, 2 << KEY_BITS)
    assert actors(base, SPEC) == dict.fromkeys(ACTORS, CHUNKS_EACH)
    assert purge(base, SPEC, ACTORS[1]) == (CHUNKS_EACH, 4 * CHUNKS_EACH)
    assert actors(base, SPEC) == dict.fromkeys(set(ACTORS) - {ACTORS[1]}, CHUNKS_EACH)


def other_letter(path: Path) -> None:
    text = path.read_text()
    path.write_text(("0" if text[0] != "0" else "1") + text[1:])


@pytest.mark.parametrize("damage", [Path.unlink, other_letter, lambda path: path.write_bytes(b"\xff" * 32)])
def test_an_id_that_is_lost_or_damaged_costs_no_experience(base: Path, damage: Callable[[Path], object]) -> None:
    before = contents(base)
    for folder in shard_folders(base, 2):
        damage(folder / ID_FILE)
    done = reshard(base, SPEC, 3, print)
    assert contents(base) == before and sum(done.chunks) == len(before)


def test_nothing_is_deleted_that_is_not_carried_over(base: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = lived(tmp_path_factory.mktemp("elsewhere"), 1, 2)
    first, second = shard_folders(base, 2)
    foreign = segments(elsewhere.parts[0].journal.log._folder)[0].read_bytes()
    (first / "0000000000009999.segment").write_bytes(foreign)
    spoilt = segments(second)[0]
    data = bytearray(spoilt.read_bytes())
    data[scan(second, SPEC).entries[2].offset - 3] ^= 1  # in the header of a chunk
    spoilt.write_bytes(data)
    before, lines = contents(base), list[str]()
    reshard(base, SPEC, 1, lines.append)
    assert contents(base) == before | {} and len(before) < CHUNKS_EACH * len(ACTORS)
    kept = {path.read_bytes() for path in base.glob("*.aside*")}
    assert kept == {foreign, bytes(data)} and len(lines) == 2 and "cannot be read: it is now" in lines[1]


def test_old_logs_stay_where_a_chunk_is_not_in_the_new_ones(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, write = contents(base), module._write

    def lossy(base: Path, shard: Shard, chunks: module.Chunks, *more: object) -> None:
        write(base, shard, chunks[1:], *more)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "_write", lossy)
    with pytest.raises(OSError, match="3 chunks are not in the new logs"):
        reshard(base, SPEC, 3, print)
    assert contents(base) == before and stored_shards(base) == 2


def test_the_folders_tell_the_number_of_shards_where_the_file_is_lost(base: Path) -> None:
    before = contents(base)
    (base / "shards").unlink()
    assert stored_shards(base) == 2 and contents(base) == before
    lived(base / "more", 1, 1)
    segments(base / "more")[0].rename(base / "0000000000000000.segment")
    with pytest.raises(LogRefused, match="shards is lost, and there are logs for 1 and 2 shards"):
        stored_shards(base)
