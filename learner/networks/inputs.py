"""Turns stored observations into a torso's inputs: dequantised, frame stack folded in, goal difference added, normalised. The
mask of actions is left out.

Where the fields `achieved_goal` and `desired_goal` have one shape, their difference d = desired - achieved can be an input of its
own, because a network needs many samples to learn the subtraction. Vectors can be normalised by running statistics, which are
published with the weights. With them d is given a second time, as d / (|d| + s / 8) with s the usual size of an entry of d, so
that its direction remains visible near the goal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from learner.networks.known.layout import NEAR_WAY, WAY, InputLayout
from learner.networks.modes import autocasts
from learner.parallel.base import ALONE, Group
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Column, ExperienceSpec

Tensors = Mapping[str, Tensor]
Plain = Callable[[Tensors, Tensor], dict[str, Tensor]]  # rows and an index -> their stacks, as stored
CLIP = 10.0  # normalised inputs are clipped to ±10
NEAR = 1 / 8  # of s: the length of d at which its rescaled form has half of its full length
EPSILON = 1e-8  # avoids division by zero for constant features


class Kernel(Protocol):
    """`stack` of stack_kernel.py."""

    def __call__(self, rows: Tensor, index: Tensor, table: Tensor, memory_format: torch.memory_format, /) -> Tensor: ...


class KernelStacks:
    """Stacks and dequantises the images of observations by a kernel, in one type and memory format."""

    def __init__(
        self, kernel: Kernel, inputs: Inputs, device: torch.device, dtype: torch.dtype, memory_format: torch.memory_format
    ) -> None:
        self._kernel, self.dtype, self.memory_format = kernel, dtype, memory_format
        values = torch.arange(256, device=device).to(dtype)  # every stored value
        self._tables = {field.name: (field.shape, _scaled_in_place(field, values.clone())) for field in inputs.images}

    def __call__(self, rows: Tensors, index: Tensor) -> dict[str, Tensor]:
        """{name: [R, *shape], or windows [N, W, *shape]}, and the index [N, stack] -> {name: [N, stack * C, H, W]} floats."""
        return {name: self._stacked(rows[name], index, *known) for name, known in self._tables.items()}

    def _stacked(self, rows: Tensor, index: Tensor, shape: tuple[int, ...], table: Tensor) -> Tensor:
        if len(shape) == 2:
            rows = rows.unsqueeze(-3)
        return self._kernel(rows, index, table, self.memory_format)


class Normaliser(nn.Module):
    """Normalises features by running mean and variance; the identity until it has observed any."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def forward(self, values: Tensor) -> Tensor:
        """[..., features] float32 -> the same shape, within ±10 once there are statistics."""
        scaled = ((values - self.mean) / torch.sqrt(self.variance + EPSILON)).clamp(-CLIP, CLIP)
        return torch.where(self.count > 0, scaled, values)

    @torch.no_grad()
    def observe(self, values: Tensor, group: Group = ALONE, weight: Tensor | None = None) -> None:
        """Updates the statistics by [N, features] of each process of the group, unless they would become infinite or NaN.

        `weight` [N], positive: how much each row counts beside the others of the call. None: all count the same.
        Chan et al. 1983 (doi:10.1080/00031305.1983.10483115), with means instead of sums, so that nothing overflows.
        """
        assert values.dim() == 2
        number, variance, mean = group.var_mean(values, weight)
        count = self.count + number
        share = number / count
        step = mean - self.mean
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * step.square()
        finite = (merged.isfinite() & step.isfinite()).all()
        self.mean.copy_(torch.where(finite, self.mean + share * step, self.mean))
        self.variance.copy_(torch.where(finite, merged, self.variance))
        self.count.copy_(torch.where(finite, count, self.count))


class Inputs(nn.Module):
    """{name: [N, stack, *shape]} as stored -> {name: [N, *shape]} floats, as `shapes` says; a torso reads these.

    An image keeps its axes, its stack becomes channels: [N, stack * C, H, W]. Everything else is a vector [N, stack * size].
    """

    def __init__(self, spec: ExperienceSpec, images: bool = True, goal: bool = False, normalise: bool = False) -> None:
        """Without `images`, image fields are read as vectors. `goal` adds the goal difference where there are goals; `normalise`
        normalises vectors by running statistics."""
        super().__init__()
        layout = InputLayout(spec, images, goal, normalise)
        self.dtype = torch.float32  # of the torso's inputs; an actor may use a smaller one
        self.stack, self.images, self.vectors, self.goal = layout.stack, layout.images, layout.vectors, layout.goal
        self.sizes, self.widths, self.shapes = layout.sizes, layout.widths, layout.shapes
        self.normaliser = Normaliser(layout.normalised) if layout.normalised else None
        self.rescales = layout.rescales
        self.kernel: KernelStacks | None = None  # set where the learner has found it faster

    def forward(self, observation: Tensors, memory_format: torch.memory_format = torch.contiguous_format) -> dict[str, Tensor]:
        """Images have `memory_format`. Under autocast they have its dtype, which represents all 256 values exactly."""
        given = self.read_images(observation, memory_format)
        if self.vectors:
            given |= self.read_vectors(observation)
        return {name: given[name] for name in self.shapes}

    def stacked(self, rows: Tensors, index: Tensor, plain: Plain, memory_format: torch.memory_format) -> dict[str, Tensor]:
        """The stacks of rows, for forward(): plain(rows, index), but images already dequantised where a kernel does that.

        torch.compile makes one kernel of the plain way by itself.
        """
        kernel = None if torch.compiler.is_compiling() else self.kernel
        if kernel is None or (kernel.dtype, kernel.memory_format) != (self.image_dtype(index.device), memory_format):
            return plain(rows, index)
        images = kernel(rows, index)
        return plain({name: column for name, column in rows.items() if name not in images}, index) | images

    def image_dtype(self, device: torch.device) -> torch.dtype:
        """That of images: autocast's where it is on."""
        return torch.get_autocast_dtype(device.type) if autocasts(device.type) else self.dtype

    def read_images(self, observation: Tensors, memory_format: torch.memory_format) -> dict[str, Tensor]:
        """The part of forward()'s result that comes from images."""
        return {field.name: self._image(field, observation[field.name], memory_format) for field in self.images}

    def _image(self, field: Column, stored: Tensor, memory_format: torch.memory_format) -> Tensor:
        if self.kernel is not None and stored.is_floating_point():
            return stored
        _check(field, stored)
        pixels, dtype = stored.flatten(1, -3), self.image_dtype(stored.device)
        if stored.device.type == "cpu" and memory_format == torch.channels_last:
            # The bytes are rearranged first: to convert and rearrange in one step takes two to three times as long there.
            pixels = torch.stack(pixels.unbind(1), -1).permute(0, 3, 1, 2)
        return _scaled_in_place(field, pixels.to(dtype, memory_format=memory_format))

    def read_vectors(self, observation: Tensors) -> dict[str, Tensor]:
        """The part of forward()'s result that comes from vectors."""
        return {name: values.flatten(1).to(self.dtype) for name, values in self._scaled(observation).items()}

    def _scaled(self, observation: Tensors) -> dict[str, Tensor]:
        """The vectors that a torso reads {name: [N, rows, size]} float32, for any number of rows."""
        parts = self._decoded(observation)
        if self.normaliser is None:
            return parts
        values = torch.cat(list(parts.values()), 2)
        scaled = dict(zip(parts, self.normaliser(values).split(list(self.sizes.values()), 2), strict=True))
        if self.rescales:
            way = parts[WAY]
            usual = self.normaliser.variance[-self.sizes[WAY] :].mean().sqrt()
            size = torch.where(self.normaliser.count > 0, usual, 1.0)
            scaled[NEAR_WAY] = way / (way.norm(dim=2, keepdim=True) + NEAR * size + EPSILON)
        return scaled

    def _decoded(self, observation: Tensors) -> dict[str, Tensor]:
        """The dequantised vectors {name: [N, rows, size]} float32, for any number of rows."""
        parts = {}
        for field in self.vectors:
            stored = observation[field.name]
            _check(field, stored)
            values = stored.flatten(2) if stored.dim() > 2 else stored[..., None]
            parts[field.name] = _scaled(field, values.float())
        if self.goal:
            parts[WAY] = parts[DESIRED_GOAL] - parts[ACHIEVED_GOAL]
        return parts

    def raw(self, observation: Tensors) -> Tensor:
        """All vectors concatenated, before normalisation: {name: [N, rows, *shape]} as stored -> [N, rows, features] float32."""
        return torch.cat(list(self._decoded(observation).values()), 2)

    def rows(self, observation: Tensors) -> Tensor:
        """All vectors as a torso reads them, concatenated: {name: [N, rows, *shape]} as stored -> [N, rows, features] float32."""
        return torch.cat(list(self._scaled(observation).values()), 2)

    def flat(self, rows: Tensor) -> Tensor:
        """[N, stack, features] of rows() -> [N, stack * features], in the order of Concat."""
        if self.stack == 1 or len(self.widths) == 1:
            return rows.flatten(1)
        return torch.cat([part.flatten(1) for part in rows.split(list(self.widths.values()), 2)], 1)

    def observe(self, rows: Tensors, which: Tensor, group: Group = ALONE, weight: Tensor | None = None) -> None:
        """Updates the running statistics by rows {name: [R, *shape]} as stored: those at the indices `which` [N] int64, or where
        `which` [R] bool is True; in a group, by those of all processes. `weight` [N]: as Normaliser.observe's."""
        if self.normaliser is not None:
            seen = {field.name: rows[field.name][which][:, None] for field in self.vectors}
            self.normaliser.observe(self.raw(seen).squeeze(1), group, weight)


def observe(module: nn.Module, rows: Tensors) -> None:
    """Updates the statistics of all normalised inputs in a module by rows {name: [R, *shape]} as stored."""
    for part in module.modules():
        if isinstance(part, Inputs):
            part.observe(rows, torch.arange(len(next(iter(rows.values())))))


def _check(field: Column, stored: Tensor) -> None:
    assert stored.shape[2:] == field.shape, f"{field.name}: expected [N, rows, {field.shape}], got {tuple(stored.shape)}"


def _scaled(field: Column, values: Tensor) -> Tensor:
    if field.scale != 1.0:
        values = values * field.scale
    return values + field.offset if field.offset else values


def _scaled_in_place(field: Column, values: Tensor) -> Tensor:
    """As _scaled(), of values that nobody else has: a new tensor of images would take longer to fill than to compute."""
    if field.scale != 1.0:
        values.mul_(field.scale)
    return values.add_(field.offset) if field.offset else values
