"""Rollouts on a device with streams, by a stand-in: one copy a batch, and no slot goes back before its copy has ended."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities
from learner.feed import on_device as opening
from learner.feed.batches import to_chunks
from learner.feed.rollouts import RolloutFeed
from learner.updates.runtime import LearnerRuntime
from learner.updates.trees import leaves
from replay.client.base import SampledBatch
from replay.table.layout import layout
from tests.learner.examples import CPU, image, vector
from tests.learner.feed.test_streamed import Device
from transport.experience import Categorical, Column, ExperienceSpec
from transport.messages.codec import pack, unpack
from transport.messages.replay import SampleRequest
from transport.metrics import Metrics

SPEC = ExperienceSpec(
    (image(shape=(3, 4)), vector()), Categorical(3), 8, 2, 1, unit="rollouts", extras=(Column("log_prob", (), "<f4"),)
)
CHUNKS = 4
LAYOUT = layout(SPEC, CHUNKS)


class Replay:
    """Stands for the sampler, with one slot, which it overwrites as soon as that is released."""

    batch_size = CHUNKS
    oldest_version = -1

    def __init__(self, device: Device) -> None:
        self.memory = np.zeros(LAYOUT.slot_bytes, np.uint8)
        self._device, self.drawn, self.released = device, 0, 0

    def next(self, timeout_seconds: float) -> SampledBatch:
        self.drawn += 1
        arrays = LAYOUT.view(self.memory)
        for array in arrays.values():
            array[...] = self.drawn
        return SampledBatch(0, self.drawn, arrays)

    def release(self, batch: SampledBatch) -> None:
        assert self._device.main.done == self._device.main.count, "the slot is still being copied"
        self.released += 1


class CopiesFrom(TorchDispatchMode):
    """Counts the operations that read a memory."""

    def __init__(self, memory: np.ndarray) -> None:
        super().__init__()
        self._memory, self.operations = torch.from_numpy(memory).untyped_storage().data_ptr(), 0

    def __torch_dispatch__(self, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = operation(*args, **(kwargs or {}))
        read = [one for one in args if isinstance(one, Tensor) and one.untyped_storage().data_ptr() == self._memory]
        self.operations += bool(read) and not any(view in operation.name() for view in ("view", "select", "slice", "alias"))
        return result


def test_a_rollout_batch_is_one_copy_of_its_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    device = Device()
    locked: list[np.ndarray] = []

    def lock(memory: np.ndarray, device: torch.device) -> bool:
        locked.append(memory)
        return True

    monkeypatch.setattr(opening, "capabilities", lambda _: replace(capabilities(CPU), streams=True))
    monkeypatch.setattr(opening, "backend", lambda _: device)
    monkeypatch.setattr(opening, "page_lock", lock)
    replay: Any = Replay(device)
    feed = opening.device_feed(replay, SPEC, LearnerRuntime(LearnerConfig(), CPU), Metrics())
    assert len(locked) == 1 and locked[0] is replay.memory
    for number in (1, 2, 3):
        with CopiesFrom(replay.memory) as copies:
            drawn = feed.next(1.0)
        assert drawn is not None and copies.operations == 1 and drawn.mean_version == number
        for one, other in zip(leaves(drawn.batch), leaves(to_chunks(LAYOUT.view(replay.memory), SPEC, CPU)), strict=True):
            assert one.dtype == other.dtype and torch.equal(one, other)
        replay.memory[:] = 255  # nothing of the batch lies there
        assert (drawn.batch.reward == number).all()
        assert device.waits == number - 1, "the host does not wait for a copy before the update"
        feed.done(drawn, None)
        feed.end_epoch(number)
        assert replay.released == number


@pytest.mark.parametrize(("lag", "version", "oldest"), [(1, 1, 0), (4, 1, -1), (4, 9, 5)])
def test_every_oldest_version_is_one_that_replay_takes(lag: int, version: int, oldest: int) -> None:
    sampler: Any = SimpleNamespace(oldest_version=-1)
    slots: Any = None
    RolloutFeed(sampler, SPEC, slots, Metrics(), lag).end_epoch(version)
    request = unpack(pack(SampleRequest(0, 1, sampler.oldest_version)))
    assert request.oldest_version == oldest
