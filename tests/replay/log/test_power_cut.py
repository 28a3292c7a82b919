"""After a power cut, replay loses at most what it has written since its last fsync, and nothing else breaks."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from replay.log import journal as journals
from replay.log.segments import Scan, scan_segment
from tests.harness.power import Disk, Held
from tests.replay.log.test_restore import SPEC, Incarnation

pytestmark = pytest.mark.skipif(os.name != "posix", reason="Windows cannot fsync folders")
CHUNKS = 36  # more than the ring holds, so that segments are deleted meanwhile


class Cut:
    """What a disk may hold, and the keys that must be restored from it."""

    def __init__(self, held: Held, least: range) -> None:
        self.held, self.least = held, least


def cuts(folder: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> Iterator[Cut]:
    """A run of replay, which ends at each of its moments; of each `every`th step all of them."""
    monkeypatch.setattr(journals, "SEGMENT_CHUNKS", 4)
    disk = Disk(folder, monkeypatch)
    replay = Incarnation(folder)
    synced = 0
    for number in range(CHUNKS):
        replay.insert(number, number + 1)
        disk.look()
        settle(replay)  # it saves nothing while the background is behind
        if number % 3 == 2:
            replay.journal._next_sync = 0.0
            replay.journal._next_state = 0.0 if number % 9 == 8 else 1e9  # a save also fsyncs the folder
            replay.journal.turn(dict)
            settle(replay)
            synced = number + 1
        if number % every == 0:
            oldest = replay.ring.oldest_key
            yield from (Cut(held, range(oldest, synced)) for held in disk.held())
    replay.stop()
    yield from (Cut(held, range(replay.ring.oldest_key, CHUNKS)) for held in disk.held())


def settle(replay: Incarnation) -> None:
    done = threading.Event()
    replay.journal._background.submit(done.set)
    assert done.wait(20)


def check(cut: Cut, folder: Path) -> None:
    folder.mkdir()
    for name, content in cut.held.items():
        (folder / name).write_bytes(content)
    found = Incarnation(folder)
    keys = sorted(int(key) for key in found.ring.state().chunk_keys if key >= 0)
    assert set(cut.least) <= set(keys), f"lost: {sorted(set(cut.least) - set(keys))}"
    assert keys == list(range(keys[0], keys[-1] + 1)) if keys else not cut.least, "a hole"
    found.ring.check_invariants()
    assert found.ring.next_key <= CHUNKS and found.ring.next_key >= max(keys, default=-1) + 1
    found.insert(found.ring.next_key, found.ring.next_key + 2)
    found.stop()
    for aside in folder.glob("*.aside*"):
        begun = Scan()
        scan_segment(aside, SPEC, begun)
        assert not begun.entries, "only a segment that was just begun may be in the way"


@pytest.mark.parametrize("every", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_power_cut_at_any_moment_loses_at_most_what_was_not_synced(
    every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "replay").mkdir()
    with monkeypatch.context() as recording:
        found = list(cuts(tmp_path / "replay", recording, every))
    different = {repr((sorted(cut.held.items()), cut.least)): cut for cut in found}
    assert len(different) > 15
    for number, cut in enumerate(different.values()):
        check(cut, tmp_path / str(number))
