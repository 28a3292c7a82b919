"""The protocol between the learner's loop and replay: batches come to the device, priorities go back.

Which class serves it depends on the spec's unit and on the device: learner/feed/open.py chooses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from learner.updates.base import Batch
from replay.client.base import SampledBatch
from replay.shards import KEY_BITS
from transport.experience import PERSON, Columns, ExperienceSpec
from transport.messages.fields import MOST_SHARDS


class DeviceBatch(NamedTuple):
    """A batch on the device, valid until it is passed to done()."""

    batch: Batch
    mean_version: float  # mean policy_version of its items
    place: int  # index of the memory that it lies in
    key: np.ndarray | None = None  # [B] int64 item keys; None where no priorities are sent


class Slots(Protocol):
    """Brings the slots of a sampler to where updates compute: the device of torch, or for the engine numpy's views."""

    def batch(self, sampled: SampledBatch) -> Any:
        """The slot's batch: Transitions or Chunks, as the spec's unit says."""

    def wait(self) -> None:
        """Until replay may overwrite the slot of the last batch, as far as that depends on copies."""


class Feed(Protocol):
    """Where the learner's loop gets its batches, and where their priorities go."""

    updates_per_epoch: int

    @property
    def episodes(self) -> int:
        """The episodes that replay has collected since it was started; 0 with rollouts."""

    @property
    def steps(self) -> Sequence[int]:
        """The environment steps that each replay process has collected since it was started; none before the first batch."""

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        """The next batch; None when none arrived within the timeout. Raises ReplayRefused."""

    def done(self, drawn: DeviceBatch, priorities: Any) -> None:
        """Call it when the update by this batch has been queued on the device. `priorities` [B], a tensor or an array, may still
        be being computed; None: replay keeps the old ones."""

    def end_epoch(self, version: int) -> None:
        """Call it after each epoch; `version` is the newest published policy."""

    def poll(self) -> None:
        """Reads what replay has sent; call it while no batch is wanted, or its messages pile up. Raises ReplayRefused."""

    def finish(self) -> None:
        """Sends all priorities that have not been sent yet."""

    def close(self) -> None:
        """Disconnects from replay."""


def mean_version(arrays: Columns, spec: ExperienceSpec) -> float:
    """Mean policy_version of a batch; of chunks, over the rows with an action."""
    own = arrays["key"] >> KEY_BITS < MOST_SHARDS  # demonstrations are of no version
    if not own.any():
        own[:] = True
    versions = arrays["policy_version"][own]
    if spec.unit != "transitions":
        versions = versions[arrays["valid"][own] != 0]
    of_policy = versions[versions != PERSON]
    return float((of_policy if of_policy.size else np.zeros(1)).mean())
