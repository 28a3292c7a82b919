"""Weights as bytes: on disk (atomic, checksummed) and on the wire. Both are safetensors; nothing is ever unpickled.

No torch here: actors and learners that run in numpy read and write weights, too.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import psutil
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from learner.weights.errors import CheckpointError as CheckpointError
from learner.weights.manifest import MANIFEST, DamagedManifest, Entry, change, contradiction, read_manifest
from transport.files.writing import replacing, tidy

if TYPE_CHECKING:
    from torch import Tensor


class Stateful(Protocol):
    """What has weights: a module of torch, or of the engine. Those of its state_dict() may be written in place."""

    def state_dict(self) -> Mapping[str, Any]: ...


Weights = dict[str, np.ndarray]
Convert = Callable[[Weights, dict[str, str]], tuple[Weights, dict[str, str]]]
CHECKPOINT_FORMAT = "2"  # files of format 1 do not contain the number
FORMAT_KEY, DIGEST_KEY = "format", "blake2b"  # in a file's metadata
LEARNER_KEYS = ("policy_version", "epoch", "spec_digest", "env", "algorithm", "spec")  # of the metadata of a policy alone
LINE_LENGTH = 200
OLDER_KEPT = 5  # checkpoints from which `headrace fork` may begin
ROOM = 1.2  # this many times a file's size must be free before it is written


def write(path: Path, weights: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str]) -> bytes:
    """Writes weights and metadata atomically: `path` is at any time the complete old file or the complete new one. Returns the
    bytes written.

    Raises CheckpointError for weights that are not finite, and OSError, also where the disk has too little space for the file;
    the old file then stays.
    """
    payload = packed(path.name, weights, metadata)
    if shutil.disk_usage(path.parent).free < ROOM * len(payload):
        raise OSError(errno.ENOSPC, "No space left on device")
    with replacing(path) as file:
        file.write(payload)
    return payload


def packed(name: str, weights: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str]) -> bytes:
    """The bytes of a file of this `name`. Raises CheckpointError for weights that are not finite."""
    arrays = {key: as_array(value) for key, value in weights.items()}
    _check_finite(arrays, name)
    metadata = {**metadata, FORMAT_KEY: CHECKPOINT_FORMAT}
    return safetensors.numpy.save(arrays, {**metadata, DIGEST_KEY: digest_of(arrays, metadata)})


def write_listed(
    path: Path, weights: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str], superseded: list[Path] | None = None
) -> None:
    """As write(); also enters the file in its folder's manifest, and removes the `superseded` files from the manifest."""
    change(path.parent, {}, [path.name])
    entry = entry_of(write(path, weights, metadata), metadata)
    change(path.parent, {path.name: entry}, [old.name for old in superseded or ()])


def write_latest(path: Path, weights: Weights, metadata: Mapping[str, str]) -> None:
    """Writes the newest policy from a full checkpoint. Raises OSError."""
    write_listed(path, policy_weights(weights), {key: metadata[key] for key in LEARNER_KEYS if key in metadata})


def entry_of(payload: bytes, metadata: Mapping[str, str]) -> Entry:
    """The entry of the manifest for a file of these bytes."""
    epoch = int(metadata["epoch"]) if "epoch" in metadata else None
    return Entry(hashlib.sha256(payload).hexdigest(), len(payload), int(metadata.get("policy_version", 0)), epoch)


def read(path: Path, convert: Convert | None = None) -> tuple[Weights, dict[str, str]]:
    """Reads and checks a file that write() wrote. `convert`: for exported files of format 1, which are otherwise refused.

    Raises CheckpointError.
    """
    if path.exists() and not path.is_file():  # a pipe would be waited for, for ever
        raise CheckpointError(f"{path}: not a file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = dict(file.metadata() or {})
            weights = {name: file.get_tensor(name) for name in file.keys()}
    except FileNotFoundError:
        raise CheckpointError(f"{path}: there is no such checkpoint") from None
    except (SafetensorError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"{path}: truncated, or not a safetensors file ({_line(error)})") from error
    digest = metadata.pop(DIGEST_KEY, None)
    if digest is None:
        raise CheckpointError(f"{path}: a safetensors file, but not a Headrace checkpoint (it has no checksum)")
    found = metadata.get(FORMAT_KEY, "1")
    if found != "1" or not {"spec", "config"} <= metadata.keys():  # of format 1 exported files alone are read
        convert = None
    if found != CHECKPOINT_FORMAT and convert is None:
        raise CheckpointError(
            f"{path} has format {found!r:.40}, this version of headrace reads format {CHECKPOINT_FORMAT!r}: "
            "use the version that wrote it"
        )
    if digest != digest_of(weights, metadata):
        raise CheckpointError(f"{path}: damaged: its checksum does not match")
    metadata.pop(FORMAT_KEY, None)
    _check_finite(weights, str(path))
    if convert is None:
        return weights, metadata
    try:
        return convert(weights, metadata)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{path} has format '1' and is of a version that is no longer read ({_line(error)}): use the version that wrote it"
        ) from error


class Checkpoints:
    """The full checkpoints of a run, `epoch-NUMBER.safetensors`: the newest `keep`, and `older` ones spread over the run."""

    def __init__(self, folder: Path, keep: int, older: int = 0) -> None:
        """Removes partial files whose writer is dead; the evaluator may be writing one now."""
        self._folder, self._keep, self._older = folder, keep, older
        for partial in folder.glob(".*.partial"):
            writer = partial.name.split(".")[-2]
            if not (writer.isdecimal() and int(writer) != os.getpid() and psutil.pid_exists(int(writer))):
                tidy(partial)

    def paths(self) -> list[Path]:
        """Newest first."""
        return sorted(self._folder.glob("epoch-*.safetensors"), reverse=True)

    def write(self, epoch: int, tensors: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str]) -> Path:
        """Adds a checkpoint, then deletes those that are too many. Raises as write() does, and then deletes none."""
        path = self._folder / f"epoch-{epoch:010d}.safetensors"
        # A file of a later epoch is damaged: this run was resumed from an earlier one.
        there = sorted({path, *(found for found in self.paths() if found < path)})
        older, newest = there[: -self._keep], there[-self._keep :]
        superseded = [one for one in older if one not in spread(older, newest[0], self._older)]
        write_listed(path, tensors, metadata, superseded)
        for old in superseded:
            tidy(old)
        return path

    def newest(self, complain: Callable[[str], None], passing_over: int = 0) -> tuple[Path, Weights, dict[str, str]] | None:
        """The newest undamaged checkpoint: (path, tensors, metadata). None where there is no checkpoint at all.

        A checkpoint is undamaged if it agrees with the manifest and with the checksum inside it; each damaged one is reported
        through `complain`. `passing_over` is the number of newest checkpoints to skip; the oldest is never skipped. Raises
        CheckpointError when all checkpoints are damaged: a run must not silently start again from nothing.
        """
        paths = self.paths()
        entries = self._entries(complain) if paths else None
        for path in paths[min(passing_over, max(len(paths) - 1, 0)) :]:
            try:
                if entries is not None and path.name in entries and (how := contradiction(path, entries[path.name])):
                    raise CheckpointError(f"{path}: damaged: {how}")
                found = (path, *read(path))
            except (CheckpointError, OSError) as error:
                complain(f"{error}; trying the checkpoint before it")
                continue
            if entries is not None and path.name not in entries:
                complain(f"{path.name} is not in {MANIFEST} yet: it was checked by the checksum inside it")
            return found
        if paths:
            raise CheckpointError(
                f"no checkpoint in {self._folder} can be read: restore one from a backup, or start with --fresh"
            )
        return None

    def _entries(self, complain: Callable[[str], None]) -> dict[str, Entry] | None:
        """The manifest's entries; None where it is damaged or missing (runs of older versions have none)."""
        try:
            return read_manifest(self._folder)
        except DamagedManifest as error:
            complain(f"{error}: checkpoints are checked by the checksums inside them")
            return None


def spread(older: Sequence[Path], newer: Path, most: int) -> list[Path]:
    """At most `most` of these checkpoints, the oldest first. Again and again one goes whose neighbours are the closest; that of
    the last one is `newer`, so that what stays is spread over the run whenever it ends."""
    kept, end = [(epoch_of(path), path) for path in older], epoch_of(newer)
    while len(kept) > most:
        epochs = [0, *(epoch for epoch, _ in kept), end]
        gaps = [after - before for before, after in zip(epochs, epochs[2:], strict=False)]
        kept.pop(gaps.index(min(gaps)))
    return [path for _, path in kept]


def epoch_of(path: Path) -> int:
    """The number in the name of a full checkpoint; 0 for another file's name."""
    number = path.stem.removeprefix("epoch-")
    return int(number) if number.isdecimal() else 0


def pack(weights: Mapping[str, Tensor | np.ndarray]) -> bytes:
    """A module's state_dict() as bytes for the wire. Raises CheckpointError for weights that are not finite."""
    arrays = {name: as_array(value) for name, value in weights.items()}
    _check_finite(arrays, "weights")
    return safetensors.numpy.save(arrays)


def unpack(payload: bytes) -> Weights:
    """Reads the bytes of pack(), from an untrusted sender. Raises CheckpointError for anything but finite weights."""
    try:
        weights = safetensors.numpy.load(payload)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"weights are not in safetensors format ({_line(error)})") from error
    _check_finite(weights, "weights")
    return weights


def load_into(module: Stateful, weights: Weights) -> None:
    """Copies all weights into the module in place. Raises CheckpointError, having changed nothing, if they do not match it."""
    own = module.state_dict()
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())[0]
        lacking = "lack" if odd in own else "have an unknown"
        raise CheckpointError(f"weights of another network: they {lacking} {odd}")
    for name, array in weights.items():
        theirs, ours = (f"{str(each.dtype).removeprefix('torch.')} {list(each.shape)}" for each in (array, own[name]))
        if theirs != ours:
            raise CheckpointError(f"weights of another network: {name} is {theirs}, not {ours}")
    for name, value in own.items():
        if isinstance(value, np.ndarray):
            value[...] = weights[name]
        else:
            value.copy_(value.new_tensor(weights[name]))


def policy_weights(weights: Weights) -> Weights:
    """The policy's weights in a full checkpoint; the weights of a file that holds only a policy, unchanged."""
    return {name.removeprefix("policy/"): value for name, value in weights.items() if name.startswith("policy/")} or weights


def as_array(value: Tensor | np.ndarray) -> np.ndarray:
    """A C-ordered array on the host, from any device and memory format; a 0-d tensor stays 0-d."""
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().numpy()
    return np.asarray(value, order="C")


def digest_of(weights: Weights, metadata: dict[str, str]) -> str:
    """A checksum of the metadata and of all names, types, shapes and bytes."""
    state = hashlib.blake2b(repr(sorted(metadata.items())).encode(), digest_size=16)
    for name in sorted(weights):
        state.update(f"{name} {weights[name].dtype.str} {weights[name].shape};".encode())
        state.update(np.ascontiguousarray(weights[name]).data)
    return state.hexdigest()


def _check_finite(weights: Weights, what: str) -> None:
    """Raises CheckpointError if a float is not a number or infinite."""
    for name, array in weights.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise CheckpointError(f"{what}: {name} is not finite")


def _line(error: Exception) -> str:
    """An error's first line, shortened, without unprintable characters: a hostile file may have put any text into it."""
    line = (str(error) or type(error).__name__).splitlines()[0][:LINE_LENGTH]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
