"""Batches of numpy arrays for the engine: views of replay's slots."""

from __future__ import annotations

import numpy as np

from learner.updates.base import Chunks, Transitions
from replay.client.base import SampledBatch
from transport.experience import Columns, ExperienceSpec

Arrays = dict[str, np.ndarray]
# What numbers are learned from, where replay gathers them as other ones; discrete actions are int64, too.
DTYPES = dict.fromkeys(("terminated", "truncated", "valid"), np.bool_)
DTYPES |= dict.fromkeys(("episode_step", "length"), np.int64) | {"probability": np.float32}


class SlotViews:
    """Nothing is copied but what has another type: keep the slot until the update is done."""

    def __init__(self, spec: ExperienceSpec) -> None:
        self._spec = spec

    def batch(self, sampled: SampledBatch) -> Transitions[np.ndarray] | Chunks[np.ndarray]:
        return views(sampled.arrays, self._spec)

    def wait(self) -> None:
        """Replay may overwrite the slot when the update is done."""


def views(arrays: Columns, spec: ExperienceSpec) -> Transitions[np.ndarray] | Chunks[np.ndarray]:
    """A batch of the spec's unit. `arrays` are named as in replay.table.layout."""
    Batch = Transitions if spec.unit == "transitions" else Chunks
    plain: Arrays = {name: arrays[name] for name in Batch._fields if name not in ("observation", "extras", "action")}
    plain = {name: value.astype(DTYPES[name], copy=False) if name in DTYPES else value for name, value in plain.items()}
    action = arrays["action"]
    return Batch(
        observation={field.name: arrays[f"observation/{field.name}"] for field in spec.fields},
        action=action if action.dtype.kind == "f" else action.astype(np.int64, copy=False),
        extras={column.name: arrays[column.name] for column in spec.extras if column.name in arrays},
        **plain,
    )
