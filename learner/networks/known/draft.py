"""A description that grows layer by layer, with the names that torch's modules give to their tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

from learner.description import Op, PolicyDescription
from transport.experience import ACHIEVED_GOAL, DESIRED_GOAL, Column

Shape = tuple[int, ...]


class Read(Protocol):
    """What torso inputs are made of: an InputLayout, or the module of learner/networks/inputs.py."""

    stack: int
    images: list[Column]
    vectors: list[Column]
    goal: bool
    shapes: dict[str, Shape]


def inputs_op(read: Read, tensors: tuple[str, ...], as_images: Collection[str] = ()) -> Op:
    """The first op of a policy's program. `tensors`: those of the normaliser, if there is one. `as_images`: the images that the
    torso reads as such; it reads the others as vectors."""
    known = {field.name: field for field in (*read.images, *read.vectors)}
    fields = [
        {"name": name, "shape": list(known[name].shape), "scale": known[name].scale, "offset": known[name].offset}
        for name in read.shapes
        if name in known and name not in as_images
    ]
    goal = [ACHIEVED_GOAL, DESIRED_GOAL] if read.goal else []
    return Op("inputs", tensors, {"fields": fields, "stack": read.stack, "goal": goal})


class Draft:
    """The tensors of a network in the order of its state_dict, and the ops of its program."""

    def __init__(self) -> None:
        self.tensors: dict[str, tuple[Shape, str]] = {}
        self.ops: list[Op] = []
        self.state: dict[str, Shape] = {}

    def add(self, kind: str, prefix: str = "", shapes: Mapping[str, Shape] = {}, **options: Any) -> None:  # noqa: B006
        """A layer of that kind with its tensors, PREFIX.NAME."""
        self.apply(kind, self.hold(prefix, shapes), **options)

    def hold(self, prefix: str, shapes: Mapping[str, Shape]) -> tuple[str, ...]:
        """Adds tensors of no layer yet; returns their whole names."""
        found = {f"{prefix}.{name}": (shape, "float32") for name, shape in shapes.items()}
        self.tensors |= found
        return tuple(found)

    def apply(self, kind: str, tensors: tuple[str, ...], **options: Any) -> None:
        """An op over tensors that are held."""
        self.ops.append(Op(kind, tensors, options))

    def add_linear(self, prefix: str, inputs: int, outputs: int) -> None:
        self.add("linear", prefix, {"weight": (outputs, inputs), "bias": (outputs,)})

    def done(self) -> PolicyDescription:
        return PolicyDescription(self.tensors, tuple(self.ops), self.state)
