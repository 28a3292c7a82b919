"""Weights as bytes: on disk (atomic, checksummed) and on the wire. safetensors both times; nothing is ever unpickled.

Nothing here imports torch, but load_into(): actors that run in numpy and the evaluator read and write weights, too."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import psutil
import safetensors.numpy
from safetensors import SafetensorError, safe_open

from learner.weights.errors import CheckpointError as CheckpointError
from learner.weights.manifest import MANIFEST, DamagedManifest, Entry, change, contradiction, read_manifest
from transport.run_dir import replacing

if TYPE_CHECKING:
    from torch import Tensor, nn

Weights = dict[str, np.ndarray]
CHECKPOINT_FORMAT = "2"  # files of format 1 do not contain the number
FORMAT_KEY, DIGEST_KEY = "format", "blake2b"  # in a file's metadata
LINE_LENGTH = 200
ROOM = 1.2  # times a file's size must be free before it is begun


def write(path: Path, weights: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str]) -> bytes:
    """Writes weights and metadata so that `path` is at all times either the old file or the new one, whole; gives what it wrote.

    Raises CheckpointError for weights that are not finite, OSError as the system does, or before it begins where the disk is too
    full; the old file then stays.
    """
    arrays = {name: as_array(value) for name, value in weights.items()}
    _check_finite(arrays, path.name)
    metadata = {**metadata, FORMAT_KEY: CHECKPOINT_FORMAT}
    payload = safetensors.numpy.save(arrays, {**metadata, DIGEST_KEY: _digest(arrays, metadata)})
    if shutil.disk_usage(path.parent).free < ROOM * len(payload):
        raise OSError(errno.ENOSPC, "No space left on device")
    with replacing(path) as file:
        file.write(payload)
    return payload


def write_listed(
    path: Path, weights: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str], superseded: list[Path] | None = None
) -> None:
    """As write(), with the file's entry in the manifest of its folder, which those `superseded` leave. Raises as write() does."""
    change(path.parent, {}, [path.name])
    payload = write(path, weights, metadata)
    epoch = int(metadata["epoch"]) if "epoch" in metadata else None
    entry = Entry(hashlib.sha256(payload).hexdigest(), len(payload), int(metadata.get("policy_version", 0)), epoch)
    change(path.parent, {path.name: entry}, [old.name for old in superseded or ()])


def read(path: Path) -> tuple[Weights, dict[str, str]]:
    """Reads what write() wrote, checked. Raises CheckpointError."""
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
        raise CheckpointError(f"{path}: a safetensors file, but not a checkpoint of ours (no checksum in it)")
    found = metadata.get(FORMAT_KEY, "1")
    if found != CHECKPOINT_FORMAT:
        raise CheckpointError(
            f"{path} has format {found!r:.40}, this version of headrace reads format {CHECKPOINT_FORMAT!r}: "
            "use the version that wrote it"
        )
    if digest != _digest(weights, metadata):
        raise CheckpointError(f"{path}: damaged, its checksum does not fit")
    del metadata[FORMAT_KEY]
    _check_finite(weights, str(path))
    return weights, metadata


class Checkpoints:
    """The full checkpoints of a run: `epoch-NUMBER.safetensors`, a bounded number of them."""

    def __init__(self, folder: Path, keep: int) -> None:
        """Removes what a writer that was killed left behind; not what the evaluator may be writing now."""
        self._folder, self._keep = folder, keep
        for partial in folder.glob(".*.partial"):
            writer = partial.name.split(".")[-2]
            if not (writer.isdecimal() and int(writer) != os.getpid() and psutil.pid_exists(int(writer))):
                partial.unlink(missing_ok=True)

    def paths(self) -> list[Path]:
        """All there are, newest first."""
        return sorted(self._folder.glob("epoch-*.safetensors"), reverse=True)

    def write(self, epoch: int, tensors: Mapping[str, Tensor | np.ndarray], metadata: dict[str, str]) -> None:
        """Adds one, then deletes the oldest beyond the number kept. Raises as write() does; those there were then stay."""
        path = self._folder / f"epoch-{epoch:010d}.safetensors"
        superseded = sorted({path, *self.paths()}, reverse=True)[self._keep :]
        write_listed(path, tensors, metadata, superseded)
        for old in superseded:
            old.unlink(missing_ok=True)

    def newest(self, complain: Callable[[str], None], passing_over: int = 0) -> tuple[Path, Weights, dict[str, str]] | None:
        """The newest that is sound; `complain` hears of each that is not. None where there never was one.

        Sound is what the manifest says of it, and the checksum inside. `passing_over` so many of the newest, but not the last.
        Raises CheckpointError when there are some but all are damaged: a run must not start over by itself.
        """
        paths = self.paths()
        entries = self._entries(complain) if paths else None
        for path in paths[min(passing_over, max(len(paths) - 1, 0)) :]:
            try:
                if entries is not None and path.name in entries and (how := contradiction(path, entries[path.name])):
                    raise CheckpointError(f"{path}: damaged: {how}")
                found = (path, *read(path))
            except (CheckpointError, OSError) as error:
                complain(f"{error}; looking at the one before")
                continue
            if entries is not None and path.name not in entries:
                complain(f"{path.name} is not in {MANIFEST} yet: taken by the checksum inside it")
            return found
        if paths:
            raise CheckpointError(f"no checkpoint in {self._folder} can be read; put a sound one there, or start with --fresh")
        return None

    def _entries(self, complain: Callable[[str], None]) -> dict[str, Entry] | None:
        """What the manifest says; None where it says nothing (runs from before there was one have none)."""
        try:
            return read_manifest(self._folder)
        except DamagedManifest as error:
            complain(f"{error}: checkpoints are taken by the checksums inside them")
            return None


def pack(weights: Mapping[str, Tensor]) -> bytes:
    """A module's state_dict() as bytes for the wire. Raises CheckpointError for weights that are not finite."""
    arrays = {name: as_array(value) for name, value in weights.items()}
    _check_finite(arrays, "weights")
    return safetensors.numpy.save(arrays)


def unpack(payload: bytes) -> Weights:
    """Reads what pack() gave, from whom it may. Raises CheckpointError for anything that is not finite weights."""
    try:
        weights = safetensors.numpy.load(payload)
    except (SafetensorError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(f"weights are not in safetensors format ({_line(error)})") from error
    _check_finite(weights, "weights")
    return weights


def load_into(module: nn.Module, weights: Weights) -> None:
    """Copies weights into a module in place: all of them, or raises CheckpointError and changes none."""
    import torch

    own = module.state_dict()
    if own.keys() != weights.keys():
        odd = sorted(own.keys() ^ weights.keys())[0]
        lacking = "lack" if odd in own else "have an unknown"
        raise CheckpointError(f"weights of another network: they {lacking} {odd}")
    tensors = {name: torch.from_numpy(np.require(array, requirements="W")) for name, array in weights.items()}
    for name, tensor in tensors.items():
        if (tensor.shape, tensor.dtype) != (own[name].shape, own[name].dtype):
            theirs, ours = (f"{value.dtype} {list(value.shape)}" for value in (tensor, own[name]))
            raise CheckpointError(f"weights of another network: {name} is {theirs}, not {ours}")
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def policy_weights(weights: Weights) -> Weights:
    """The policy's part of a full checkpoint; a policy's own weights as they are."""
    return {name.removeprefix("policy/"): value for name, value in weights.items() if name.startswith("policy/")} or weights


def as_array(value: Tensor | np.ndarray) -> np.ndarray:
    """A C-ordered array on the host, whatever the device and memory format; 0-d stays 0-d."""
    if not isinstance(value, np.ndarray):
        value = value.detach().cpu().numpy()
    return np.asarray(value, order="C")


def _digest(weights: Weights, metadata: dict[str, str]) -> str:
    """A checksum over the metadata, and over names, types, shapes and bytes."""
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
    """An error's first line, or its beginning; it may hold what a stranger has put into the file."""
    line = (str(error) or type(error).__name__).splitlines()[0][:LINE_LENGTH]
    return "".join(letter if letter.isprintable() else "?" for letter in line)
