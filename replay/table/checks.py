"""What replay refuses to keep: values that would break a learner. Which those are, each column says."""

from __future__ import annotations

import numpy as np

from transport.experience import Categorical, Chunk, Column, ExperienceSpec


class RejectedChunk(ValueError):
    """A chunk whose values cannot be learned from: the text says why."""


def check_chunk(spec: ExperienceSpec, chunk: Chunk, reward_limit: float) -> None:
    """Raises RejectedChunk for actions that do not exist, and for what the `check` of a column forbids.

    `reward_limit`: a reward further from 0 is finite, but would outweigh all others.
    """
    used = chunk.columns["valid"] != 0
    if isinstance(spec.action, Categorical):
        action = chunk.columns["action"][used]
        if action.size and (action.min() < 0 or action.max() >= spec.action.n):
            raise RejectedChunk(f"an action outside 0 to {spec.action.n - 1}")
    for column in spec.columns:
        _check(column, chunk.columns[column.name], used, reward_limit)


def _check(column: Column, values: np.ndarray, used: np.ndarray, reward_limit: float) -> None:
    """`used` [rows]: rows with an action."""
    if column.check == "any":
        return
    if column.check == "natural":
        if values.size and values.min() < 0:
            raise RejectedChunk(f"a negative {column.name}")
        return
    if column.dtype.startswith("<f") and not np.isfinite(values).all():
        raise RejectedChunk(f"{column.name} is not finite")
    if column.check == "reward" and (np.abs(values if column.once else values[used]) > reward_limit).any():
        raise RejectedChunk(f"a {column.name} beyond replay.reward_limit {reward_limit:g}")
