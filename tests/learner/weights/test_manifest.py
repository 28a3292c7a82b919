"""The manifest of checkpoints: whatever is in the file, it is read as what it says or refused in one line."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.weights import manifest
from learner.weights.manifest import MANIFEST, MOST_BYTES, DamagedManifest, Entry, change, contradiction, read_manifest

ENTRY = Entry(hashlib.sha256(b"weights").hexdigest(), 7, 3, 1)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["files", "sha256", "bytes", "epoch", "x"]), inner)
    ),
    max_leaves=8,
)


@given(text=st.binary(max_size=200) | JSON.map(lambda value: repr(value).replace("'", '"').encode()))
def test_any_bytes_are_a_manifest_or_are_refused(tmp_path_factory: pytest.TempPathFactory, text: bytes) -> None:
    folder = tmp_path_factory.getbasetemp()
    (folder / MANIFEST).write_bytes(text)
    try:
        found = read_manifest(folder)
    except DamagedManifest as error:
        assert "\n" not in str(error)
    else:
        assert found is not None and all(isinstance(entry, Entry) for entry in found.values())


def test_a_manifest_is_not_read_beyond_its_limit(tmp_path: Path) -> None:
    with open(tmp_path / MANIFEST, "wb") as file:
        file.truncate(1 << 40)  # takes no room
    with pytest.raises(DamagedManifest, match=f"more than {MOST_BYTES:,} bytes"):
        read_manifest(tmp_path)


def test_what_is_entered_is_found_and_what_does_not_fit_is_told(tmp_path: Path) -> None:
    assert read_manifest(tmp_path) is None
    change(tmp_path, {"a": ENTRY, "b": ENTRY})
    change(tmp_path, {}, ["b", "never there"])
    assert read_manifest(tmp_path) == {"a": ENTRY}
    path = tmp_path / "a"
    for content, how in ((b"weights", ""), (b"weight", "6 bytes where"), (b"weightS", "its sha256")):
        path.write_bytes(content)
        reason = contradiction(path, ENTRY)
        assert reason.startswith(how) and bool(reason) == bool(how)


def test_two_that_write_at_once_lose_nothing_of_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "LOCK_SECONDS", 60.0)  # one may wait for all changes of the other, on a slow disk

    def enter(name: str) -> None:
        for number in range(10):
            change(tmp_path, {f"{name}{number}": ENTRY})

    writers = [threading.Thread(target=enter, args=(name,)) for name in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(read_manifest(tmp_path) or {}) == 20


def test_a_lock_that_another_process_keeps_is_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "LOCK_SECONDS", 0.05)
    with manifest.locked(tmp_path):
        with pytest.raises(OSError):
            change(tmp_path, {"a": ENTRY})
    change(tmp_path, {"a": ENTRY})
