"""From observations as they rest to what a torso reads: dequantised, stack folded in, the way to the goal, normalised.

Where there is a goal, fields `achieved_goal` and `desired_goal` of one shape, their difference desired - achieved can go in as
an input of its own: that is what has to be done, and a network needs many samples to find it. Vectors can be scaled by running
statistics that travel with the weights. With those goes the way to the goal once more, squeezed so that its direction still shows
when little of it is left: d / (|d| + s / 8), s being the usual size of an entry of d.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from learner.networks.modes import autocasts
from learner.parallel.group import ALONE, Group
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Column, ExperienceSpec

Tensors = Mapping[str, Tensor]
WAY, NEAR_WAY = "goal/way", "goal/near"  # inputs beside the fields: desired - achieved, and its squeezed form
CLIP = 10.0  # normalised inputs are cut off here
NEAR = 1 / 8  # of the usual way to a goal: where its squeezed form has half of its full length
EPSILON = 1e-8  # keeps a feature that never changes from being divided by zero


def is_image(field: Column) -> bool:
    """Whether a field is a picture, [C, H, W] or [H, W] in uint8. Everything else is a vector, whatever its shape."""
    return field.dtype == "|u1" and len(field.shape) in (2, 3)


class Normaliser(nn.Module):
    """Scales features by their running mean and variance; leaves them as they are while it has seen none."""

    count: Tensor
    mean: Tensor
    variance: Tensor

    def __init__(self, features: int) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("variance", torch.ones(features))

    def forward(self, values: Tensor) -> Tensor:
        """[..., features] float32 -> the same, within ±10 once there are statistics."""
        scaled = ((values - self.mean) / torch.sqrt(self.variance + EPSILON)).clamp(-CLIP, CLIP)
        return torch.where(self.count > 0, scaled, values)

    @torch.no_grad()
    def observe(self, values: Tensor, group: Group = ALONE) -> None:
        """Takes [N, features] of each process of the group into the statistics, unless that would make them infinite or NaN.

        Chan et al. 1983 (doi:10.1080/00031305.1983.10483115) in shares instead of sums, so that nothing grows.
        """
        assert values.dim() == 2
        number, variance, mean = group.var_mean(values)
        count = self.count + number
        share = number / count
        step = mean - self.mean
        merged = (1 - share) * self.variance + share * variance + share * (1 - share) * step.square()
        sound = (merged.isfinite() & step.isfinite()).all()
        self.mean.copy_(torch.where(sound, self.mean + share * step, self.mean))
        self.variance.copy_(torch.where(sound, merged, self.variance))
        self.count.copy_(torch.where(sound, count, self.count))


class Inputs(nn.Module):
    """{name: [N, stack, *shape]} as stored -> {name: [N, *shape]} floats, as `shapes` says; a torso reads these.

    An image keeps its axes, its stack becomes channels: [N, stack * C, H, W]. Everything else is a vector [N, stack * size].
    """

    def __init__(self, spec: ExperienceSpec, images: bool = True, goal: bool = False, normalise: bool = False) -> None:
        """Without `images` pictures are vectors, too. `goal` adds the way to the goal where there is one; `normalise` scales
        vectors by running statistics."""
        super().__init__()
        self.stack = spec.stack
        self.dtype = torch.float32  # of what is given; an actor's copy may want a smaller type
        self.images = [field for field in spec.fields if images and is_image(field)]
        self.vectors = [field for field in spec.fields if field not in self.images]
        sizes = {field.name: math.prod(field.shape) for field in self.vectors}
        shapes = {field.name: field.shape for field in self.vectors}
        self.goal = goal and ACHIEVED_GOAL in shapes and shapes.get(DESIRED_GOAL) == shapes[ACHIEVED_GOAL]
        if self.goal:
            sizes[WAY] = sizes[DESIRED_GOAL]
        self.sizes = sizes  # entries of a row, the way to the goal included
        self.normaliser = Normaliser(sum(sizes.values())) if normalise and sizes else None
        self.squeezes = self.goal and self.normaliser is not None
        self.shapes = self._shapes(spec)

    def _shapes(self, spec: ExperienceSpec) -> dict[str, tuple[int, ...]]:
        given: dict[str, tuple[int, ...]] = {}
        for field in spec.fields:
            if field in self.images:
                channels = field.shape[0] if len(field.shape) == 3 else 1
                given[field.name] = (spec.stack * channels, *field.shape[-2:])
            else:
                given[field.name] = (spec.stack * self.sizes[field.name],)
        if self.goal:
            given[WAY] = (spec.stack * self.sizes[WAY],)
        if self.squeezes:
            given[NEAR_WAY] = given[WAY]
        return given

    def forward(self, observation: Tensors, memory_format: torch.memory_format = torch.contiguous_format) -> dict[str, Tensor]:
        """Images lie in `memory_format`. Under autocast they are in its type, in which all 256 values can be told apart."""
        given = {field.name: self._image(field, observation[field.name], memory_format) for field in self.images}
        if self.vectors:
            given |= self.read_vectors(observation)
        return {name: given[name] for name in self.shapes}

    def _image(self, field: Column, stored: Tensor, memory_format: torch.memory_format) -> Tensor:
        _check(field, stored)
        dtype = torch.get_autocast_dtype(stored.device.type) if autocasts(stored.device.type) else self.dtype
        pixels = stored.flatten(1, -3).to(dtype, memory_format=memory_format)
        return _scaled(field, pixels)

    def read_vectors(self, observation: Tensors) -> dict[str, Tensor]:
        """What forward() gives of all that is no image."""
        parts = self._decoded(observation)
        if self.normaliser is not None:
            values = torch.cat(list(parts.values()), 2)
            scaled = dict(zip(parts, self.normaliser(values).split(list(self.sizes.values()), 2), strict=True))
            if self.squeezes:
                way = parts[WAY]
                usual = self.normaliser.variance[-self.sizes[WAY] :].mean().sqrt()
                size = torch.where(self.normaliser.count > 0, usual, 1.0)
                scaled[NEAR_WAY] = way / (way.norm(dim=2, keepdim=True) + NEAR * size + EPSILON)
            parts = scaled
        return {name: values.flatten(1).to(self.dtype) for name, values in parts.items()}

    def _decoded(self, observation: Tensors) -> dict[str, Tensor]:
        """{name: [N, rows, size]} float32 of the vectors, for any number of rows."""
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
        """Vectors side by side, before normalisation: {name: [N, rows, *shape]} as stored -> [N, rows, features] float32."""
        return torch.cat(list(self._decoded(observation).values()), 2)

    def flat(self, rows: Tensor) -> Tensor:
        """[N, stack, features] of raw() -> [N, stack * features], in the order in which a torso sees vectors side by side."""
        if self.stack == 1 or len(self.sizes) == 1:
            return rows.flatten(1)
        return torch.cat([part.flatten(1) for part in rows.split(list(self.sizes.values()), 2)], 1)

    def observe(self, rows: Tensors, which: Tensor, group: Group = ALONE) -> None:
        """Takes rows {name: [R, *shape]} as stored into the running statistics: those that `which` [N] int64 names, or where
        `which` [R] bool is True; and those of the other processes of the group."""
        if self.normaliser is not None:
            seen = {field.name: rows[field.name][which][:, None] for field in self.vectors}
            self.normaliser.observe(self.raw(seen).squeeze(1), group)


def _check(field: Column, stored: Tensor) -> None:
    assert stored.shape[2:] == field.shape, f"{field.name}: expected [N, rows, {field.shape}], got {tuple(stored.shape)}"


def _scaled(field: Column, values: Tensor) -> Tensor:
    if field.scale != 1.0:
        values = values * field.scale
    return values + field.offset if field.offset else values
