"""Copies that overlap with computation, with stand-ins for a device's streams and for replay: what must be waited for, and is."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

from learner.config import LearnerConfig
from learner.feed.batches import device_views, to_device
from learner.feed.open import make_feed
from learner.feed.streamed import AHEAD, StreamedFeed
from learner.updates.runtime import LearnerRuntime
from replay.client.base import SampledBatch
from replay.table.layout import layout
from tests.learner.examples import CPU, image, make_spec, vector
from transport.metrics import Metrics

SPEC = make_spec(image(shape=(3, 4)), vector(), stack=2, n_step=2)
ITEMS, SLOTS = 4, 4
LAYOUT = layout(SPEC, ITEMS)


class Replay:
    """Stands for the sampler: slots filled with the number of the batch, as long as slots are vacant."""

    batch_size = ITEMS

    def __init__(self) -> None:
        self.memory = np.zeros(SLOTS * LAYOUT.slot_bytes, np.uint8)
        self.vacant = deque(range(SLOTS))
        self.released: list[int] = []
        self.answers: list[tuple[int, float]] = []
        self.drawn = 0
        self.dry = False

    def next(self, timeout_seconds: float) -> SampledBatch | None:
        if self.dry or not self.vacant:
            return None
        slot = self.vacant.popleft()
        self.drawn += 1
        arrays = LAYOUT.view(self.memory, slot)
        for array in arrays.values():
            array[...] = self.drawn % 2 if array.dtype.kind == "b" else self.drawn
        return SampledBatch(slot, self.drawn, arrays)

    def release(self, batch: SampledBatch) -> None:
        self.memory.reshape(SLOTS, -1)[batch.slot] = 255  # a later read gets nonsense
        self.released.append(batch.generation)
        self.vacant.append(batch.slot)

    def answer(self, batch: SampledBatch, priorities: np.ndarray) -> None:
        self.update_priorities(batch.arrays["key"], priorities)
        self.release(batch)

    def update_priorities(self, keys: np.ndarray, priorities: np.ndarray) -> None:
        self.answers.append((int(keys[0]), float(priorities[0])))


class Event:
    """Of a stream: over when the device has come that far, which `Device.done` says."""

    def __init__(self, device: Device, blocking: bool) -> None:
        self._device, self._blocking, self.at = device, blocking, -1

    def record(self, stream: Stream) -> None:
        assert stream.device == self._device.used, "an event of one device, recorded in a stream of another"
        stream.count += 1
        self.at, self.stream = stream.count, stream

    def query(self) -> bool:
        return self.at <= self.stream.done

    def synchronize(self) -> None:
        assert self._blocking, "the host sleeps while it waits, and does not spin"
        self._device.waits += 1
        self.stream.done = max(self.stream.done, self.at)

    def elapsed_time(self, other: Event) -> float:
        assert self.query() and other.query(), "a time that is not known yet"
        return 1.0


class Stream:
    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.count = self.done = 0
        self.waited: list[tuple[Stream, int]] = []

    def wait_event(self, event: Event) -> None:
        self.waited.append((event.stream, event.at))

    def wait_stream(self, stream: Stream) -> None:
        self.after = stream


class Device:
    """Stands for torch.cuda, where the thread's current device is another than the one `used`."""

    current_device = torch.device("cpu", 7)

    def __init__(self, used: torch.device = CPU) -> None:
        self.used = used
        self.main = self.current = Stream(used)
        self.sides: list[Any] = []
        self.waits = 0

    def Stream(self, device: torch.device | None = None) -> Any:
        self.sides.append(Stream(device or self.current_device))
        return self.sides[-1]

    def Event(self, enable_timing: bool = False, blocking: bool = False) -> Any:
        return Event(self, blocking)

    def current_stream(self, device: torch.device | None = None) -> Any:
        return self.current if (device or self.current_device) == self.used else Stream(self.current_device)

    @contextmanager
    def stream(self, stream: Any) -> Iterator[None]:
        before, self.current = self.current, stream
        yield
        self.current = before


@pytest.fixture
def world() -> tuple[Replay, Device, StreamedFeed]:
    replay, device = Replay(), Device()
    return replay, device, StreamedFeed(replay, SPEC, CPU, Metrics(), 1, device)  # type: ignore[arg-type]


def test_batches_come_in_order_and_hold_what_the_slots_held(world: tuple[Replay, Device, StreamedFeed]) -> None:
    replay, device, batches = world
    for number in range(1, 12):
        device.sides[0].done = device.sides[0].count  # every copy is over at once
        drawn = batches.next(1.0)
        assert drawn is not None
        assert drawn.key is not None and drawn.key.tolist() == [number] * ITEMS and drawn.mean_version == number
        assert float(drawn.batch.reward[0, 0]) == number and int(drawn.batch.observation["image"].max()) == number
        batches.done(drawn, torch.full((ITEMS,), float(number)))
    batches.finish()
    assert replay.answers == [(number, float(number)) for number in range(1, 12)], "each batch's priorities, with its keys"


def test_a_slot_goes_back_when_it_has_been_copied_and_not_before(world: tuple[Replay, Device, StreamedFeed]) -> None:
    replay, device, batches = world
    for _ in range(3):
        drawn = batches.next(1.0)
        assert drawn is not None
        batches.done(drawn, torch.zeros(ITEMS))
    assert replay.released == []
    device.sides[0].done = 2
    batches.next(1.0)
    assert replay.released == [1, 2]


def test_memory_of_the_device_is_written_only_when_the_update_that_read_it_is_over(
    world: tuple[Replay, Device, StreamedFeed],
) -> None:
    _, device, batches = world
    for _ in range(6):
        device.sides[0].done = device.sides[0].count
        drawn = batches.next(1.0)
        assert drawn is not None
        batches.done(drawn, torch.zeros(ITEMS))
    side, main = device.sides[0], device.main
    assert [at for stream, at in main.waited if stream is side] == [1, 2, 3, 4, 5, 6], "each update after its own copy"
    # The main stream counts two events an update. Copy 3 overwrites what update 1 read, which ended with event 2; and so on.
    assert [at for stream, at in side.waited if stream is main][:4] == [2, 4, 6, 8]


def test_all_streams_and_events_are_of_the_learners_device_whichever_the_thread_would_take() -> None:
    replay, device = Replay(), Device(used := torch.device("cpu", 1))
    feed: Any = StreamedFeed(replay, SPEC, used, Metrics(), 1, device)  # type: ignore[arg-type]
    assert [side.device for side in device.sides] == [used] and device.sides[0].after is device.main
    drawn = feed.next(1.0)
    feed.done(drawn, torch.zeros(ITEMS))
    assert device.main.waited and device.sides[0].count and device.main.count


def test_the_host_is_ahead_of_the_device_by_no_more_than_it_should_be(world: tuple[Replay, Device, StreamedFeed]) -> None:
    replay, device, batches = world
    for number in range(1, 6):
        device.sides[0].done = device.sides[0].count
        drawn = batches.next(1.0)
        assert drawn is not None
        batches.done(drawn, torch.zeros(ITEMS))
        assert device.waits == len(replay.answers) == max(number - AHEAD, 0)


def test_without_data_there_is_no_batch_and_what_is_done_can_be_finished(world: tuple[Replay, Device, StreamedFeed]) -> None:
    replay, _, batches = world
    drawn = batches.next(1.0)
    replay.dry = True
    ahead = batches.next(0.0)  # was on its way already
    assert drawn is not None and ahead is not None
    assert batches.next(0.0) is None
    batches.done(drawn, torch.ones(ITEMS))
    batches.done(ahead, torch.zeros(ITEMS))
    batches.finish()
    assert replay.answers == [(1, 1.0), (2, 0.0)]


def test_a_slot_copied_as_one_piece_holds_the_same_tensors() -> None:
    random = np.random.default_rng(0)
    memory = random.integers(0, 2, LAYOUT.slot_bytes).astype(np.uint8)
    views, arrays = device_views(LAYOUT, torch.from_numpy(memory.copy())), LAYOUT.view(memory)
    assert views.keys() == arrays.keys()
    for name, array in arrays.items():
        assert views[name].dtype == torch.from_numpy(array).dtype and np.array_equal(views[name].numpy(), array, equal_nan=True)


def test_a_device_without_streams_copies_each_batch_when_it_is_its_turn() -> None:
    replay = Replay()
    batches = make_feed(replay, SPEC, LearnerRuntime(LearnerConfig(), CPU), Metrics())  # type: ignore[arg-type]
    drawn = batches.next(1.0)
    assert drawn is not None and replay.drawn == 1
    same = to_device(SampledBatch(0, 1, LAYOUT.view(replay.memory, 0)), SPEC, CPU)
    assert torch.equal(drawn.batch.observation["image"], same.observation["image"])
    assert replay.released == [], "a CPU reads the slot itself"
    batches.done(drawn, torch.ones(ITEMS))
    assert replay.released == [1] and replay.answers == [(1, 1.0)]
