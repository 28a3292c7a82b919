"""Observations and actions of a space as JSON and MessagePack carry them, for programs outside.

A batch of K has one more axis in front. A Box, MultiDiscrete or MultiBinary is a list of numbers, nested or flat, or its raw
bytes (C order, little-endian, the space's dtype): binary in MessagePack, base64 in JSON. A Discrete is a number. A Dict is a map,
a Tuple a list of its parts, each with the batch's axis.
"""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any, TypeVar

import msgpack
import msgspec
import numpy as np
from gymnasium import spaces

from transport.files import documents
from transport.files.documents import DECODE_ERRORS, reason

T = TypeVar("T")


def decode(data: str | bytes, binary: bool, kind: type[T]) -> T:
    """A message in MessagePack (`binary`) or JSON. Raises ValueError, in one line."""
    if not binary:
        return documents.decode(data, kind)
    try:  # no part can be longer than `data`
        return msgspec.convert(msgpack.unpackb(data, max_ext_len=0), kind)
    except (*DECODE_ERRORS, msgpack.exceptions.UnpackException) as error:
        raise ValueError(reason(error) or "no MessagePack") from error


def encode(message: dict[str, Any], binary: bool) -> bytes:
    return msgspec.msgpack.encode(message) if binary else msgspec.json.encode(message)


def read_batch(space: spaces.Space, data: Any, count: int, name: str = "observation") -> Any:
    """A batch of `count` in the form of `space`: arrays [count, *shape], or a dict or tuple of them. Raises ValueError."""
    if isinstance(space, spaces.Dict):
        if not isinstance(data, dict):
            raise ValueError(f"{name} must be a map with {', '.join(map(str, space.spaces))}")
        found = _parts(space, data)
        if missing := [key for key in space.spaces if key not in found]:
            raise ValueError(f"{name} has no {missing[0]!r}")
        return {key: read_batch(part, found[key], count, f"{name}.{key}") for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        if not isinstance(data, list) or len(data) != len(space.spaces):
            raise ValueError(f"{name} must be a list of {len(space.spaces)} parts")
        return tuple(
            read_batch(part, one, count, f"{name}.{i}") for i, (part, one) in enumerate(zip(space.spaces, data, strict=True))
        )
    return _array(data, np.dtype(space.dtype), (count, *(space.shape or ())), name)


def read_one(space: spaces.Space, data: Any, name: str = "observation") -> Any:
    """A batch of one from data without the batch's axis. Raises ValueError."""
    return read_batch(space, _with_axis(space, data), 1, name)


def count_of(space: spaces.Space, data: Any) -> int:
    """How many observations or actions a batch holds, by its first part; 0 for what is no batch."""
    while isinstance(space, spaces.Dict | spaces.Tuple):
        try:
            if isinstance(space, spaces.Dict):
                name = next(iter(space.spaces))
                space, data = space.spaces[name], _parts(space, data)[name]
            else:
                space, data = space.spaces[0], data[0]
        except (AttributeError, KeyError, IndexError, TypeError, StopIteration):
            return 0
    if isinstance(data, list):
        return len(data)
    size = len(data) * 3 // 4 - data[-2:].count("=") if isinstance(data, str) else len(data) if isinstance(data, bytes) else 0
    return size // max(math.prod(space.shape or ()) * np.dtype(space.dtype).itemsize, 1)


def _with_axis(space: spaces.Space, data: Any) -> Any:
    if isinstance(space, spaces.Dict) and isinstance(data, dict):
        return {key: _with_axis(space.spaces[key], one) for key, one in _parts(space, data).items()}
    if isinstance(space, spaces.Tuple) and isinstance(data, list) and len(data) == len(space.spaces):
        return [_with_axis(part, one) for part, one in zip(space.spaces, data, strict=True)]
    return data if isinstance(data, bytes | str) else [data]


def _parts(space: spaces.Dict, data: dict[Any, Any]) -> dict[Any, Any]:
    """The parts of a map that the space knows, by its keys: those of a message are texts, and a space's may be numbers."""
    names = {str(key): key for key in space.spaces}
    return {names[str(name)]: part for name, part in data.items() if str(name) in names}


def to_plain(value: Any) -> Any:
    """Numbers and lists in place of arrays, and texts in place of keys that are numbers."""
    if isinstance(value, dict):
        return {str(key): to_plain(one) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(one) for one in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


def one_of(batch: Any, k: int) -> Any:
    """Entry k of a batch, in the form of its space."""
    if isinstance(batch, dict):
        return {key: one_of(one, k) for key, one in batch.items()}
    return tuple(one_of(one, k) for one in batch) if isinstance(batch, tuple) else batch[k]


def _array(data: Any, dtype: np.dtype, shape: tuple[int, ...], name: str) -> np.ndarray:
    size = math.prod(shape)
    if isinstance(data, str):
        try:
            data = base64.b64decode(data, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"{name} is a text, and not base64") from None
    if isinstance(data, bytes):
        if len(data) != size * dtype.itemsize:
            raise ValueError(f"{name} has {len(data):,} bytes; {shape} of {dtype} has {size * dtype.itemsize:,}")
        return np.frombuffer(data, dtype.newbyteorder("<")).reshape(shape).astype(dtype)
    try:
        found = np.asarray(data)
    except ValueError:  # lists of different lengths
        found = np.empty(0, object)
    if found.dtype.kind not in "biuf" or (dtype.kind in "iub" and found.dtype.kind == "f" and (found != np.rint(found)).any()):
        raise ValueError(f"{name} must be {'whole ' if dtype.kind in 'iub' else ''}numbers of the shape {shape}")
    if found.size != size or (found.ndim > 1 and found.shape != shape and found.shape != (shape[0], size // max(shape[0], 1))):
        raise ValueError(f"{name} has the shape {found.shape}; it must be {shape}")
    if dtype.kind in "iu" and size and not np.can_cast(found.dtype, dtype):
        bounds = np.iinfo(dtype)
        if found.min() < bounds.min or found.max() > bounds.max:
            raise ValueError(f"{name} has a number outside {bounds.min} to {bounds.max}")
    with np.errstate(over="ignore"):  # what is too large for the dtype becomes infinite
        return found.astype(dtype).reshape(shape)
