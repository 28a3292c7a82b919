"""Batches of transitions on devices with streams (CUDA, ROCm), where copies overlap with computation.

Each slot is copied whole, as one piece of page-locked memory, on a second stream, while the update before it computes. Priorities
are read when their update has ended, which is one update late.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from learner.devices.capabilities import capabilities
from learner.feed.base import DeviceBatch, mean_version
from learner.feed.batches import device_views, to_batch
from replay.client.base import BatchSampler, SampledBatch
from replay.table.layout import layout
from transport.experience import ExperienceSpec
from transport.metrics import Metrics
from transport.slab import Layout

BUFFERS = 2  # on the device: one in use, one being filled
AHEAD = 1  # updates that may be queued on the device while the host prepares another


class _Buffer:
    """Device memory for one slot, and views of the arrays in it."""

    def __init__(self, layout: Layout, device: torch.device) -> None:
        self.memory = torch.empty(layout.slot_bytes, dtype=torch.uint8, device=device)
        self.tensors = device_views(layout, self.memory)
        self.read: Any = None  # event: the update that read it has ended


class _Upload(NamedTuple):
    """A slot that is being copied to the device."""

    sampled: SampledBatch
    key: np.ndarray
    mean_version: float
    place: int
    copied: Any  # event: the copy has ended


class _Answer(NamedTuple):
    """Priorities that are being copied from the device."""

    key: np.ndarray | None  # [B] int64; None: there are no priorities to send
    priorities: Tensor  # page-locked
    begun: Any  # event: the update begins
    ended: Any  # event: its priorities have been copied


class StreamedFeed:
    """Copies batches while the device computes. The host waits for the device only when it is AHEAD updates ahead of it."""

    def __init__(
        self,
        sampler: BatchSampler,
        spec: ExperienceSpec,
        device: torch.device,
        metrics: Metrics,
        updates_per_epoch: int,
        streams: Any,
    ) -> None:
        """`streams` is torch's module of the device (torch.cuda): Stream, Event, stream(), current_stream().

        All streams are asked for by the device: without one they would belong to the thread's current device, and a slot would go
        back to replay while it is still being copied.
        """
        self._sampler, self._spec, self._metrics, self._streams = sampler, spec, metrics, streams
        self._device = device
        self.updates_per_epoch = updates_per_epoch
        arrays = layout(spec, sampler.batch_size)
        self._slots = torch.from_numpy(sampler.memory).reshape(-1, arrays.slot_bytes)
        self._buffers = [_Buffer(arrays, device) for _ in range(BUFFERS)]
        self._vacant = deque(range(BUFFERS))
        locked = capabilities(device).pinned_memory
        self._room = deque(torch.empty(sampler.batch_size, pin_memory=locked) for _ in range(AHEAD + 1))
        self._side = streams.Stream(device)
        self._side.wait_stream(streams.current_stream(device))  # the buffers are made there
        self._uploads: deque[_Upload] = deque()
        self._copying: deque[_Upload] = deque()  # whose copy may not have ended: their slots are still in use
        self._answers: deque[_Answer] = deque()
        self._begun: Any = None

    @property
    def episodes(self) -> int:
        return self._sampler.episodes

    @property
    def steps(self) -> list[int]:
        return self._sampler.steps

    def next(self, timeout_seconds: float) -> DeviceBatch | None:
        with self._metrics.phase("data_wait"):
            self._upload(0.0)
            if not self._uploads:
                self._upload(timeout_seconds)
        if not self._uploads:
            return None
        upload = self._uploads.popleft()
        self._streams.current_stream(self._device).wait_event(upload.copied)  # the device waits for the copy, the host does not
        self._begun = self._event()
        batch = to_batch(self._buffers[upload.place].tensors, self._spec, self._device)
        return DeviceBatch(batch, upload.mean_version, upload.place, upload.key)

    def done(self, drawn: DeviceBatch, priorities: Tensor | None) -> None:
        """Starts the next copies; waits until at most AHEAD updates are unfinished, and sends the priorities of the others."""
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

    def poll(self) -> None:
        self._sampler.poll()

    def close(self) -> None:
        self._sampler.close()

    def finish(self) -> None:
        """Waits for the last updates and sends their priorities."""
        while self._answers:
            self._send()

    def _event(self) -> Any:
        event = self._streams.Event(enable_timing=True, blocking=True)  # the host sleeps while it waits, and uses no core
        event.record(self._streams.current_stream(self._device))
        return event

    def _upload(self, timeout_seconds: float) -> None:
        """Releases the slots that have been copied; starts to copy those that replay has filled, while buffers are vacant."""
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
            upload = _Upload(sampled, arrays["key"].copy(), mean_version(arrays, self._spec), place, copied)
            self._uploads.append(upload)
            self._copying.append(upload)

    def _send(self) -> None:
        """Waits for the oldest unfinished update and sends its priorities."""
        answer = self._answers.popleft()
        with self._metrics.phase("update"):
            answer.ended.synchronize()
        self._metrics.spend("device", answer.begun.elapsed_time(answer.ended) / 1000)
        if answer.key is not None:
            with self._metrics.phase("send"):
                self._sampler.update_priorities(answer.key, answer.priorities.numpy())
        self._room.append(answer.priorities)
