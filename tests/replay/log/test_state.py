"""The state file of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from replay.log import state
from replay.log.state import DamagedState, read_state, write_state
from replay.table.base import SelectorState
from replay.table.ring import RingState

STATE = RingState(3, np.array([2, 1], np.int64), 8, 5, SelectorState(np.arange(8.0), {"a": 1}), {"duplicates": 2.0})


def test_a_state_is_read_back(tmp_path: Path) -> None:
    write_state(tmp_path / "state.npz", STATE)
    found = read_state(tmp_path / "state.npz", 4)
    assert found is not None and (found.next_chunk, found.inserted_items, found.sampled_items) == (3, 8, 5)
    assert (found.chunk_keys == STATE.chunk_keys).all() and (found.selector.values == STATE.selector.values).all()
    assert found.selector.numbers == {"a": 1} and found.counters == {"duplicates": 2.0}
    assert read_state(tmp_path / "missing.npz", 4) is None


def test_a_state_of_another_format_is_refused_in_one_line_that_names_both(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(state, "STATE_FORMAT", state.STATE_FORMAT + 1)
        write_state(tmp_path / "state.npz", STATE)
    with pytest.raises(DamagedState) as refusal:
        read_state(tmp_path / "state.npz", 4)
    expected = f"state.npz has format {state.STATE_FORMAT + 1}, this version of headrace reads format {state.STATE_FORMAT}"
    assert str(refusal.value) == expected
