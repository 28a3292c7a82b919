"""Sequences from a slot to the device, as whole chunks, by every feed; and their priorities back by the chunks' keys."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
import pytest
import torch

from learner.config import LearnerConfig
from learner.feed.open import make_feed
from learner.feed.plain import PlainFeed
from learner.feed.streamed import StreamedFeed
from learner.updates.base import Chunks
from learner.updates.runtime import LearnerRuntime
from replay.client.base import SampledBatch
from replay.table.layout import PRIORITY, layout
from tests.learner.examples import CPU, image, vector
from tests.learner.feed.test_streamed import Device
from transport.experience import Categorical, Column, ExperienceSpec
from transport.metrics import Metrics

SPEC = ExperienceSpec(
    (image(shape=(3, 4)), vector()),
    Categorical(3),
    8,
    stack=2,
    n_step=2,
    burn_in=3,
    unit="sequences",
    extras=(Column("memory/h", (5,), "<f4", once=True), Column(PRIORITY, (), "<f4", once=True, rests=False)),
)
CHUNKS, SLOTS = 4, 2
LAYOUT = layout(SPEC, CHUNKS)


class Replay:
    batch_size = CHUNKS

    def __init__(self) -> None:
        self.memory = np.zeros(SLOTS * LAYOUT.slot_bytes, np.uint8)
        self.slots = deque(range(SLOTS))
        self.answers: dict[int, float] = {}
        self.drawn = 0

    def next(self, timeout_seconds: float) -> SampledBatch | None:
        if not self.slots:
            return None
        slot = self.slots.popleft()
        self.drawn += 1
        arrays = LAYOUT.view(self.memory, slot)
        for array in arrays.values():
            array[...] = self.drawn
        arrays["valid"][:, -2:], arrays["policy_version"][:, -2:] = 0, 99  # no action was taken there
        return SampledBatch(slot, self.drawn, arrays)

    def release(self, batch: SampledBatch) -> None:
        self.slots.append(batch.slot)

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self.update_priorities(batch.arrays["key"].copy(), priorities)
        self.release(batch)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.answers |= dict(zip(keys.tolist(), priorities.tolist(), strict=True))


@pytest.mark.parametrize("kind", [PlainFeed, StreamedFeed])
def test_chunks_come_whole_and_their_priorities_go_back(kind: type) -> None:
    replay: Any = Replay()
    device = Device()
    feed: Any = make_feed(replay, SPEC, LearnerRuntime(LearnerConfig(), CPU), Metrics())
    assert type(feed) is PlainFeed
    if kind is StreamedFeed:
        feed = StreamedFeed(replay, SPEC, CPU, Metrics(), 1, device)
    for number in range(1, 6):
        for side in device.sides:
            side.done = side.count
        drawn = feed.next(1.0)
        assert drawn is not None
        batch = drawn.batch
        assert isinstance(batch, Chunks) and drawn.mean_version == number
        assert (
            batch.observation["image"].shape == (CHUNKS, SPEC.rows(8), 3, 4) and batch.observation["image"].dtype == torch.uint8
        )
        assert batch.extras.keys() == {"memory/h"} and batch.extras["memory/h"].shape == (CHUNKS, 5)
        assert batch.valid.dtype == torch.bool and batch.valid.sum() == CHUNKS * (SPEC.rows(8) - 2)
        assert (batch.action.dtype, batch.length.dtype, batch.episode_step.dtype) == (torch.int64,) * 3
        assert batch.probability.dtype == torch.float32 and batch.probability.tolist() == [number] * CHUNKS
        assert all((values == number).all() for values in (batch.reward, batch.extras["memory/h"], batch.length))
        feed.done(drawn, torch.full((CHUNKS,), float(10 * number)))
    feed.finish()
    assert replay.answers == {number: 10.0 * number for number in range(1, 6)}
