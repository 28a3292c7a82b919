"""Checks the files of weights in a run's folder against their checksums and the manifest."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from learner.weights.checkpoint import CheckpointError, entry_of, read, write_latest
from learner.weights.manifest import MANIFEST, DamagedManifest, Entry, change, contradiction, read_manifest
from replay.log.check import Finding
from replay.log.files import set_aside
from transport.files.documents import read_bytes
from transport.run_dir import RunDir


def check_weights(run: RunDir) -> Iterator[Finding]:
    """The damage in checkpoints/. Raises OSError."""
    folder, entries = run.checkpoints, dict[str, Entry]()
    files = [path for path in sorted(folder.glob("*.safetensors")) if not path.name.startswith(".")]
    sound: list[Path] = []
    try:
        known = read_manifest(folder)
        entries = known or {}
        if known is None and files:
            yield Finding(folder / MANIFEST, "is lost", repair=lambda: change(folder, _entries(sound)))
    except DamagedManifest as error:
        yield Finding(folder / MANIFEST, str(error), repair=lambda: _renew(folder, sound))
    for path in files:
        if why := _fault(path, entries.get(path.name)):
            yield Finding(path, why, "these weights", lambda path=path: _replace(run, path))  # type: ignore[misc]
        else:
            sound.append(path)
    for name in sorted(entries.keys() - {path.name for path in files}):
        path = folder / name
        yield Finding(path, f"is in {MANIFEST} and lost", "these weights", lambda path=path: _replace(run, path))  # type: ignore[misc]
    if files and not any(path.name.startswith("epoch-") for path in sound):
        yield Finding(folder, "no full checkpoint is left: learning cannot go on", "all that was learned; --fresh starts anew")


def recorded_spec(run: RunDir) -> bytes | None:
    """The spec.json with which the newest sound weights were learned; None where there are none, or only of an older version."""
    for path in sorted(run.checkpoints.glob("*.safetensors"), key=lambda path: path.name.startswith("epoch-"), reverse=True):
        if not _fault(path, None) and (text := read(path)[1].get("spec")):
            return text.encode()
    return None


def _fault(path: Path, entry: Entry | None) -> str:
    try:
        if entry is not None and (how := contradiction(path, entry)):
            return f"is damaged: {how}"
        read(path)
    except CheckpointError as error:
        return str(error).partition(": ")[2]
    except OSError as error:
        return str(error)
    return ""


def _replace(run: RunDir, path: Path) -> None:
    """Sets damaged weights aside. The newest policy is made again from the newest full checkpoint that is sound."""
    if os.path.lexists(path):
        set_aside(path)
    change(path.parent, {}, [path.name])
    if path != run.latest:
        return
    for source in sorted(path.parent.glob("epoch-*.safetensors"), reverse=True):
        if not _fault(source, None):
            write_latest(run.latest, *read(source))
            return


def _renew(folder: Path, sound: list[Path]) -> None:
    set_aside(folder / MANIFEST)
    change(folder, _entries(sound))


def _entries(paths: list[Path]) -> dict[str, Entry]:
    return {path.name: entry_of(read_bytes(path), read(path)[1]) for path in paths}
