"""Arrays between two processes over a pipe: how another library's policy acts in an evaluation.

A message is one line of JSON, then the bytes of an array if the line has its shape and dtype. The evaluation sends
`{"load": "FILE"}`, then observations [K, …]. The answer to each observation is the actions [K] or [K, A]. This module imports
numpy alone, because the other process may run in another interpreter.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import IO, Any

import numpy as np

Act = Callable[[np.ndarray], np.ndarray]  # observations [K, …] -> actions [K] or [K, A] within the environment's bounds


def send(stream: IO[bytes], line: dict[str, Any], array: np.ndarray | None = None) -> None:
    """Writes a message. Raises OSError if the other process has ended."""
    if array is not None:
        array = np.ascontiguousarray(array)
        line = line | {"shape": array.shape, "dtype": array.dtype.str}
    stream.write(json.dumps(line).encode() + b"\n")
    if array is not None:
        stream.write(array.tobytes())
    stream.flush()


def receive(stream: IO[bytes]) -> tuple[dict[str, Any], np.ndarray | None] | None:
    """The next message; None if the other process has ended."""
    text = stream.readline()
    if not text.endswith(b"\n"):
        return None
    line = json.loads(text)
    if "shape" not in line:
        return line, None
    shape, dtype = tuple(line.pop("shape")), np.dtype(line.pop("dtype"))
    size = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    data = stream.read(size)
    return None if len(data) < size else (line, np.frombuffer(data, dtype).reshape(shape))


def serve(load: Callable[[str], Act], requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answers requests until the other process ends. `load` reads a policy from a file."""
    act: Act | None = None
    while (message := receive(requests)) is not None:
        line, observation = message
        if "load" in line:
            act = load(line["load"])
        elif act is not None and observation is not None:
            send(answers, {}, act(observation))
