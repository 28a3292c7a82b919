"""The learner's end of its link with replay: batches come to the device, priorities go back.

Where a device has streams (CUDA, ROCm) neither side waits for the other: each slot is copied whole, as one piece of page-locked
memory, while the update before it computes, and priorities are read when their update has ended, which is one update late.
Everywhere else a batch is copied when it is its turn, or, on a CPU, read where it lies. Rollouts are copied everywhere.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from learner.config import LearnerSettings
from learner.devices.capabilities import backend, capabilities, page_lock
from learner.updates.base import Batch, Chunks, Runtime, Tensors, Transitions
from replay.client.sampler import SampledBatch, Sampler
from replay.table.layout import layout
from transport.experience import Columns, ExperienceSpec
from transport.lifetime import Lifetime
from transport.metrics import Metrics
from transport.slab import Layout

BUFFERS = 2  # on the device: one in use, one being filled
AHEAD = 1  # updates that may be under way when the host prepares another


class DeviceBatch(NamedTuple):
    """A batch on the device, until it is given to done()."""

    batch: Batch
    mean_version: float  # of the policies that acted its items
    place: int  # of the memory it lies in
    key: np.ndarray | None = None  # [B] int64, where priorities go back


class Feed(Protocol):
    """Where the learner's loop gets its batches, and where their priorities go."""

    updates_per_epoch: int

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        """The next batch, or None when none came in time. Raises ReplayRefused."""

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        """The device has been told to do the update by this batch, and its priorities [B] will be there; None: they stay."""

    def end_epoch(self, version: int) -> None:
        """An epoch is over; the newest policy published is of this version."""

    def finish(self) -> None:
        """Sends the priorities that have not been sent."""

    def close(self) -> None:
        """Leaves replay."""


def open_feed(address: str, settings: LearnerSettings, runtime: Runtime, life: Lifetime) -> Feed:
    """Asks replay for batches. Raises OSError."""
    spec, config = settings.spec, settings.learner
    size, slots = config.batch_items(spec), config.slots(spec)
    sampler = Sampler(address, life.name, life.incarnation, spec, size, slots, keys=life.keys)
    return make_feed(sampler, spec, runtime, life.metrics)


def make_feed(sampler: Sampler, spec: ExperienceSpec, runtime: Runtime, metrics: Metrics) -> Feed:
    """What suits the unit and the device."""
    device, updates = runtime.device, runtime.config.updates_per_epoch
    if spec.unit == "rollouts":
        return RolloutFeed(sampler, spec, device, metrics, runtime.max_policy_lag)
    if not capabilities(device).streams:
        return PlainFeed(sampler, spec, device, metrics, updates)
    if not page_lock(sampler.memory, device):
        runtime.group.warn("warning: the shared memory cannot be page-locked, so updates wait for copies (see `ulimit -l`)")
    return StreamedFeed(sampler, spec, device, metrics, updates, backend(device))


def to_transitions(tensors: Tensors, spec: ExperienceSpec) -> Transitions:
    """What `layout` lays out, as a batch."""
    action = tensors["action"]
    return Transitions(
        observation={field.name: tensors[f"observation/{field.name}"] for field in spec.fields},
        observation_index=tensors["observation_index"],
        next_index=tensors["next_index"],
        action=action.long() if action.dtype == torch.int32 else action,
        reward=tensors["reward"],
        steps=tensors["steps"],
        terminated=tensors["terminated"],
        probability=tensors["probability"].float(),
        extras={column.name: tensors[column.name] for column in spec.extras if column.name in tensors},
    )


def to_chunks(arrays: Columns, spec: ExperienceSpec, device: torch.device) -> Chunks:
    """Arrays of whole chunks, named as replay names them, on the device: copied once, or on a CPU not at all for what keeps its
    type, so keep their memory until the chunks have been learned from."""

    def move(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return torch.from_numpy(arrays[name]).to(device, dtype)

    action = move("action")
    return Chunks(
        observation={field.name: move(f"observation/{field.name}") for field in spec.fields},
        action=action if action.is_floating_point() else action.long(),
        reward=move("reward"),
        terminated=move("terminated", torch.bool),
        truncated=move("truncated", torch.bool),
        valid=move("valid", torch.bool),
        episode_step=move("episode_step", torch.int64),
        policy_version=move("policy_version"),
        length=move("length", torch.int64),
        extras={column.name: move(column.name) for column in spec.extras if column.name in arrays},
    )


def to_device(sampled: SampledBatch, spec: ExperienceSpec, device: torch.device) -> Transitions:
    """A slot's arrays on the device, as they rest: copied once, or on a CPU not at all, so keep the slot until they are used."""
    return _moved(_as_tensors(sampled), spec, device)


def _as_tensors(sampled: SampledBatch) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in sampled.arrays.items()}


def _moved(tensors: Tensors, spec: ExperienceSpec, device: torch.device) -> Transitions:
    possible = tensors | {"probability": tensors["probability"].float()}  # not every device has float64
    return to_transitions({name: tensor.to(device) for name, tensor in possible.items()}, spec)


def device_views(layout: Layout, memory: Tensor) -> Tensors:
    """The arrays of a slot within a copy of it, [slot_bytes] uint8, without copying."""
    views = {}
    for (name, shape, dtype), offset in zip(layout.arrays, layout.offsets, strict=False):
        kind = torch.from_numpy(np.empty(0, dtype)).dtype
        views[name] = memory[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
    return views


class PlainFeed:
    """Batches copied when it is their turn; on a CPU they stay in replay's slot, which goes back after the update."""

    def __init__(
        self, sampler: Sampler, spec: ExperienceSpec, device: torch.device, metrics: Metrics, updates_per_epoch: int
    ) -> None:
        self._sampler, self._spec, self._device, self._metrics = sampler, spec, device, metrics
        self.updates_per_epoch = updates_per_epoch
        self._in_use: dict[int, SampledBatch] = {}
        self._slots: dict[int, Tensors] = {}  # of each slot, whose memory is the same all along

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            sampled = self._sampler.next(timeout_seconds)
        if sampled is None:
            return None
        self._in_use[sampled.slot] = sampled
        with self._metrics.phase("copy"):
            if sampled.slot not in self._slots:
                self._slots[sampled.slot] = _as_tensors(sampled)
            batch = _moved(self._slots[sampled.slot], self._spec, self._device)
        mean_version = float(sampled.arrays["policy_version"].mean())
        return DeviceBatch(batch, mean_version, sampled.slot, sampled.arrays["key"])

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        """Waits for the device: the one wait of an update."""
        sampled = self._in_use.pop(drawn.place)
        if priorities is None:
            self._sampler.release(sampled)
            return
        with self._metrics.phase("update"):
            new = priorities.cpu().numpy()
        with self._metrics.phase("send"):
            self._sampler.answer(sampled, new)

    def end_epoch(self, version: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()


class RolloutFeed:
    """A rollout batch for each epoch, whose slot goes back when the policy that was learned from it is out."""

    updates_per_epoch = 1

    def __init__(
        self, sampler: Sampler, spec: ExperienceSpec, device: torch.device, metrics: Metrics, max_policy_lag: int
    ) -> None:
        self._sampler, self._spec, self._device, self._metrics = sampler, spec, device, metrics
        self._max_policy_lag = max_policy_lag
        self._in_use: SampledBatch | None = None

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            sampled = self._sampler.next(timeout_seconds)
        if sampled is None:
            return None
        self._in_use = sampled
        with self._metrics.phase("copy"):
            batch = to_chunks(sampled.arrays, self._spec, self._device)
        acted = sampled.arrays["valid"] != 0
        return DeviceBatch(batch, float(sampled.arrays["policy_version"][acted].mean()), sampled.slot)

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        pass

    def end_epoch(self, version: int) -> None:
        """The next rollout is asked for now, when the new weights are out, and is to be no older than allowed."""
        self._sampler.oldest_version = version - self._max_policy_lag
        if self._in_use is not None:
            self._sampler.release(self._in_use)
            self._in_use = None

    def finish(self) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()


class _Buffer:
    """Memory of the device for one slot, as one piece and as what lies in it."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.memory = torch.empty(layout.slot_bytes, dtype=torch.uint8, device=device)
        self.tensors = device_views(layout, self.memory)
        self.read: Any = None  # event: the update by what was in it has ended


class _Upload(NamedTuple):
    """A slot on its way to the device."""

    sampled: SampledBatch
    key: np.ndarray
    mean_version: float
    place: int
    copied: Any  # event


class _Answer(NamedTuple):
    """Priorities on their way from the device."""

    key: np.ndarray | None  # [B] int64; None: no priorities are to be sent
    priorities: Tensor  # page-locked
    begun: Any  # events: the update, and the copy of its priorities
    ended: Any


class StreamedFeed:
    """Batches copied beside the computing. The host waits for the device in one place: when it is AHEAD updates ahead of it."""

    def __init__(
        self,
        sampler: Sampler,
        spec: ExperienceSpec,
        device: torch.device,
        metrics: Metrics,
        updates_per_epoch: int,
        streams: Any,
    ) -> None:
        """`streams` is torch's module of the device: Stream, Event, stream(), current_stream()."""
        self._sampler, self._spec, self._metrics, self._streams = sampler, spec, metrics, streams
        self.updates_per_epoch = updates_per_epoch
        arrays = layout(spec, sampler.batch_size)
        self._slots = torch.from_numpy(sampler.memory).reshape(-1, arrays.slot_bytes)
        self._buffers = [_Buffer(arrays, device) for _ in range(BUFFERS)]
        self._vacant = deque(range(BUFFERS))
        locked = capabilities(device).pinned_memory
        self._room = deque(torch.empty(sampler.batch_size, pin_memory=locked) for _ in range(AHEAD + 1))
        self._side = streams.Stream()
        self._uploads: deque[_Upload] = deque()
        self._copying: deque[_Upload] = deque()  # whose slot is still being read
        self._answers: deque[_Answer] = deque()
        self._begun: Any = None

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            self._upload(0.0)
            if not self._uploads:
                self._upload(timeout_seconds)
        if not self._uploads:
            return None
        upload = self._uploads.popleft()
        self._streams.current_stream().wait_event(upload.copied)  # the device waits for the copy, the host does not
        self._begun = self._event()
        batch = to_transitions(self._buffers[upload.place].tensors, self._spec)
        return DeviceBatch(batch, upload.mean_version, upload.place, upload.key)

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        """Sends the next slots on their way; waits for the update AHEAD of this one and sends its priorities."""
        room = self._room.popleft()
        if priorities is not None:
            room.copy_(priorities, non_blocking=True)
        ended = self._event()
        self._buffers[drawn.place].read = ended
        self._vacant.append(drawn.place)
        self._answers.append(_Answer(drawn.key if priorities is not None else None, room, self._begun, ended))
        with self._metrics.phase("copy"):
            self._upload(0.0)  # while this update computes
        while len(self._answers) > AHEAD:
            self._send()

    def end_epoch(self, version: int) -> None:
        pass

    def close(self) -> None:
        self._sampler.close()

    def finish(self) -> None:
        """Waits for the last updates."""
        while self._answers:
            self._send()

    def _event(self) -> Any:
        event = self._streams.Event(enable_timing=True)
        event.record(self._streams.current_stream())
        return event

    def _upload(self, timeout_seconds: float) -> None:
        """Gives slots back that have been copied; begins to copy those that replay has filled, as far as there are buffers."""
        while self._copying and self._copying[0].copied.query():
            self._sampler.release(self._copying.popleft().sampled)
        while self._vacant and (sampled := self._sampler.next(timeout_seconds)) is not None:
            timeout_seconds = 0.0
            place = self._vacant.popleft()
            buffer, arrays = self._buffers[place], sampled.arrays
            copied = self._streams.Event()
            with self._streams.stream(self._side):
                if buffer.read is not None:
                    self._side.wait_event(buffer.read)
                buffer.memory.copy_(self._slots[sampled.slot], non_blocking=True)
                copied.record(self._side)
            upload = _Upload(sampled, arrays["key"].copy(), float(arrays["policy_version"].mean()), place, copied)
            self._uploads.append(upload)
            self._copying.append(upload)

    def _send(self) -> None:
        """Waits for the oldest update, and sends its priorities."""
        answer = self._answers.popleft()
        with self._metrics.phase("update"):
            answer.ended.synchronize()
        self._metrics.spend("device", answer.begun.elapsed_time(answer.ended) / 1000)
        if answer.key is not None:
            with self._metrics.phase("send"):
                self._sampler.update_priorities(answer.key, answer.priorities.numpy())
        self._room.append(answer.priorities)
