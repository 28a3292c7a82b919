"""The inputs that a torso reads, by name and size: what learner/networks/inputs.py and a description have in common."""

from __future__ import annotations

import math

from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, ExperienceSpec

WAY, NEAR_WAY = "goal/way", "goal/near"  # inputs beside the fields: desired - achieved, and its rescaled form


class InputLayout:
    """Which fields are images and which vectors, and what is made of them."""

    def __init__(self, spec: ExperienceSpec, images: bool = True, goal: bool = False, normalise: bool = False) -> None:
        """Without `images`, image fields are read as vectors. `goal` adds the goal difference where there are goals; `normalise`
        normalises vectors by running statistics."""
        self.stack = spec.stack
        self.images = [field for field in spec.visible if images and field.is_image]
        self.vectors = [field for field in spec.visible if field not in self.images]
        sizes = {field.name: math.prod(field.shape) for field in self.vectors}
        shapes = {field.name: field.shape for field in self.vectors}
        self.goal = goal and ACHIEVED_GOAL in shapes and shapes.get(DESIRED_GOAL) == shapes[ACHIEVED_GOAL]
        if self.goal:
            sizes[WAY] = sizes[DESIRED_GOAL]
        self.sizes = sizes  # by vector, the goal difference included
        self.normalised = sum(sizes.values()) if normalise else 0  # features that are normalised
        self.rescales = self.goal and self.normalised > 0
        self.widths = sizes | {NEAR_WAY: sizes[WAY]} if self.rescales else sizes  # of a row, by the torso's inputs
        self.shapes = self._shapes(spec)  # of the torso's inputs

    def _shapes(self, spec: ExperienceSpec) -> dict[str, tuple[int, ...]]:
        given: dict[str, tuple[int, ...]] = {}
        for field in spec.visible:
            if field in self.images:
                channels = field.shape[0] if len(field.shape) == 3 else 1
                given[field.name] = (spec.stack * channels, *field.shape[-2:])
            else:
                given[field.name] = (spec.stack * self.sizes[field.name],)
        if self.goal:
            given[WAY] = (spec.stack * self.sizes[WAY],)
        if self.rescales:
            given[NEAR_WAY] = given[WAY]
        return given
