"""Turns the arrays that replay has gathered into batches on the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from learner.devices.capabilities import capabilities
from learner.updates.base import Batch, Chunks, Tensors, Transitions
from replay.client.base import BatchSampler, SampledBatch
from replay.table.layout import layout
from transport.experience import Columns, ExperienceSpec
from transport.slab import Layout

WIDE = "probability"  # the one array of float64


def to_transitions(tensors: Tensors, spec: ExperienceSpec) -> Transitions:
    """`tensors` are named as in replay.table.layout."""
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
    """Moves the arrays of whole chunks to the device, named as replay names them.

    On the CPU an array that keeps its type is not copied: keep its memory until the update by it is done.
    """
    return _chunks({name: torch.from_numpy(array) for name, array in arrays.items()}, spec, device)


def _chunks(tensors: Tensors, spec: ExperienceSpec, device: torch.device) -> Chunks:
    def move(name: str, dtype: torch.dtype | None = None) -> Tensor:
        return tensors[name].to(device, dtype)

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
        probability=tensors["probability"].float().to(device),  # not every device has float64
        extras={column.name: move(column.name) for column in spec.extras if column.name in tensors},
    )


def to_device(sampled: SampledBatch, spec: ExperienceSpec, device: torch.device) -> Transitions:
    """Moves a slot's arrays to the device, as stored. On the CPU nothing is copied: keep the slot until the update is done."""
    return tensors_to_device(as_tensors(sampled), spec, device)


def as_tensors(sampled: SampledBatch) -> Tensors:
    return {name: torch.from_numpy(array) for name, array in sampled.arrays.items()}


def to_batch(tensors: Tensors, spec: ExperienceSpec, device: torch.device) -> Batch:
    """Moves the tensors of a slot to the device, as a batch of the spec's unit."""
    return (tensors_to_device if spec.unit == "transitions" else _chunks)(tensors, spec, device)


def tensors_to_device(tensors: Tensors, spec: ExperienceSpec, device: torch.device) -> Transitions:
    supported = tensors | {"probability": tensors["probability"].float()}  # not every device has float64
    return to_transitions({name: tensor.to(device) for name, tensor in supported.items()}, spec)


def device_views(layout: Layout, memory: Tensor, narrowed: bool = False) -> Tensors:
    """Views of the arrays of a slot in `memory`, a copy of that slot: [slot_bytes] uint8. `narrowed`: after narrow()."""
    views = {}
    for (name, shape, dtype), offset in zip(layout.arrays, layout.offsets, strict=False):
        kind = torch.float32 if narrowed and name == WIDE else torch.from_numpy(np.empty(0, dtype)).dtype
        views[name] = memory[offset : offset + math.prod(shape) * kind.itemsize].view(kind).reshape(shape)
    return views


def narrow(arrays: Columns) -> None:
    """Replaces the probabilities of a slot by float32 in the first half of their memory: not every device has float64."""
    wide = arrays[WIDE]
    wide.view(np.float32)[: len(wide)] = wide


class SlotCopies:
    """Brings the slots of a sampler to a device without streams: as one piece, or array by array where the device cannot see one
    piece of memory as numbers of several types. On a CPU nothing is copied: keep the slot until the update is done."""

    def __init__(self, sampler: BatchSampler, spec: ExperienceSpec, device: torch.device) -> None:
        arrays = layout(spec, sampler.batch_size)
        self._spec, self._device = spec, device
        self._slots = torch.from_numpy(sampler.memory).reshape(-1, arrays.slot_bytes)
        self._arrays: dict[int, Tensors] = {}  # by slot; made once, since the memory of a slot never moves
        self._memory = torch.empty(0 if capabilities(device).synchronous else arrays.slot_bytes, dtype=torch.uint8, device=device)
        self._views = _tried_views(arrays, self._memory) if len(self._memory) else None

    def batch(self, sampled: SampledBatch) -> Batch:
        """Each call overwrites the batch before, which the device has used by then: it does one thing after the other."""
        if self._views is not None:
            narrow(sampled.arrays)
            self._memory.copy_(self._slots[sampled.slot])
            return to_batch(self._views, self._spec, self._device)
        if sampled.slot not in self._arrays:
            self._arrays[sampled.slot] = as_tensors(sampled)
        return to_batch(self._arrays[sampled.slot], self._spec, self._device)

    def wait(self) -> None:
        """Until replay may overwrite the slot, which is when batch() returns."""


class QueuedCopies:
    """Device memory for one slot. A slot is copied in the stream that computes, so what it overwrites has been used."""

    def __init__(self, sampler: BatchSampler, spec: ExperienceSpec, device: torch.device, streams: Any) -> None:
        arrays = layout(spec, sampler.batch_size)
        self._spec, self._device, self._streams = spec, device, streams
        self._slots = torch.from_numpy(sampler.memory).reshape(-1, arrays.slot_bytes)
        self._memory = torch.empty(arrays.slot_bytes, dtype=torch.uint8, device=device)
        self._tensors = device_views(arrays, self._memory)
        self._copied: Any = None  # event

    def batch(self, sampled: SampledBatch) -> Batch:
        """The slot's batch on the device. The host does not wait for the copy."""
        self._memory.copy_(self._slots[sampled.slot], non_blocking=True)
        self._copied = self._streams.Event(blocking=True)
        self._copied.record(self._streams.current_stream(self._device))
        return to_batch(self._tensors, self._spec, self._device)

    def wait(self) -> None:
        """Until the last copy has ended, so that replay may overwrite its slot."""
        self._copied.synchronize()


def _tried_views(layout: Layout, memory: Tensor) -> Tensors | None:
    """Views of the arrays in `memory`, if what they show is what was copied there."""
    host = torch.arange(len(memory)).remainder(2).to(torch.uint8)
    try:
        memory.copy_(host)
        views = device_views(layout, memory, narrowed=True)
        found = {name: value.cpu() for name, value in views.items()}
    except Exception:  # NotImplementedError, RuntimeError: each device has errors of its own
        return None
    same = all(torch.equal(found[name], value) for name, value in device_views(layout, host, narrowed=True).items())
    return views if same else None
