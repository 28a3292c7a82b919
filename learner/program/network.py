"""A described network: the layers of its program, and the branches that they form."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeGuard

import numpy as np

from learner.description import Op, PolicyDescription
from learner.program.buffers import Buffer
from learner.program.convolutions import OF_IMAGES
from learner.program.layers import KINDS, Layer
from learner.program.memories import MEMORIES, MemoryLayer
from transport.experience import Columns

Tensors = Mapping[str, np.ndarray]
Place = slice | np.ndarray | None  # of the columns that a branch reads; None: all
FIRST = ("inputs", "push", "concat")


class Image:
    """An image as it is observed, [N, stack, *shape] as stored. `rows` is set by the network."""

    rows: np.ndarray

    def __init__(self, name: str) -> None:
        self.name = name


class Branch:
    """Layers one after the other, on columns of the inputs, on an image, or on the concatenated results of other branches."""

    def __init__(self, source: Place | Image | list[Branch]) -> None:
        self._source, self._joined = source, Buffer()
        self.layers: list[Layer] = []

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        if isinstance(self._source, list):
            parts = [branch.forward(inputs) for branch in self._source]
            self._widths = [part.shape[-1] for part in parts]
            values = np.concatenate(parts, -1, out=self._joined((*parts[0].shape[:-1], sum(self._widths))))
        elif isinstance(self._source, Image):
            values = self._source.rows
        else:
            values = inputs if self._source is None else inputs[..., self._source]
        for layer in self.layers:
            values = layer.forward(values)
        return values

    def backward(self, gradient: np.ndarray, rows: int | None, by_input: bool | slice) -> np.ndarray | None:
        """The gradient by the inputs only where this branch reads them itself."""
        nested = isinstance(self._source, list)
        found: np.ndarray | None = gradient
        for number in range(len(self.layers) - 1, -1, -1):
            assert found is not None
            found = self.layers[number].backward(found, rows, nested or number > 0 or by_input)
        if isinstance(self._source, list):
            assert found is not None
            start = 0
            for branch, width in zip(self._source, self._widths, strict=True):
                branch.backward(np.ascontiguousarray(found[..., start : start + width]), rows, False)
                start += width
            return None
        return found if by_input else None


class Network:
    """Computes a program over tensors that others change in place. Its results lie in buffers of its own, which the next call
    overwrites: a second network over the same tensors has others."""

    def __init__(
        self, program: Sequence[Op], places: Mapping[str, slice], tensors: Tensors, gradients: Tensors | None = None
    ) -> None:
        """`places`: as of Inputs. `gradients`: by the names of tensors, written by backward().

        Raises KeyError, TypeError, ValueError or IndexError for a program of another version."""
        self._memories: list[MemoryLayer] = []
        self._images: list[Image] = []
        self._all: list[Layer] = []
        stack: list[Branch] = []
        before = ""
        for op in program:
            if op.kind == "push":
                stack.append(Branch(_columns(op.options["names"], places)))
            elif op.kind == "image":
                self._images.append(Image(op.options["name"]))
                stack.append(Branch(self._images[-1]))
            elif op.kind == "concat":
                count = op.options["count"]
                stack[-count:] = [Branch(stack[-count:])]
            elif op.kind != "inputs":
                stack[-1].layers.append(self._layer(op, before, tensors, gradients))
            before = op.kind if op.tensors else ""  # without tensors, layer normalisation itself reads its result again
        (self._root,) = stack

    def _layer(self, op: Op, before: str, tensors: Tensors, gradients: Tensors | None) -> Layer:
        own = [tensors[name] for name in op.tensors]
        if op.kind in MEMORIES:
            memory = MEMORIES[op.kind](own)
            self._memories.append(memory)
            self._all.append(memory)
            return memory
        kind = OF_IMAGES.get(op.kind) or KINDS[op.kind]
        slopes = [gradients[name] for name in op.tensors] if gradients is not None and kind.trained else []
        # The inputs and a memory's state may not be modified; other results are not read again but by their own layer.
        in_place = kind.elementwise and before in ("linear", "layer_norm", *OF_IMAGES)
        self._all.append(kind(own, slopes, in_place, **op.options))
        return self._all[-1]

    def forward(self, inputs: np.ndarray) -> np.ndarray:
        """[N, features] -> [N, outputs]; the inputs are not modified, and are read again by backward()."""
        return self._root.forward(inputs)

    def backward(self, by_output: np.ndarray, rows: int | None = None, by_input: bool | slice = False) -> np.ndarray | None:
        """Writes the gradients by all trained tensors, given that by the last outputs, [M, outputs] of the first M items.

        `rows`: as Layer.backward's. Returns that by the inputs [M, features] if it is wanted, or those columns of it: only for a
        program whose single branch reads all inputs, and begins with a linear layer."""
        return self._root.backward(by_output, rows, by_input)

    def step(self, inputs: np.ndarray, state: Columns, observation: Columns) -> tuple[np.ndarray, Columns]:
        """As forward(), with images {name: [N, stack, *shape]} as stored and with memories: takes the state before [N, width],
        and also returns the state after."""
        for image in self._images:
            image.rows = observation[image.name]
        for memory in self._memories:
            memory.before = state
        outputs = self.forward(inputs)
        after: Columns = {}
        for memory in self._memories:
            after |= memory.after
        return outputs, after

    def refresh(self) -> None:
        """Call it after the tensors have changed in place, where the network does not learn."""
        for layer in self._all:
            layer.refresh()


def learns(program: Iterable[Op]) -> bool:
    """True if every op of the program has a gradient."""
    return all(op.kind in FIRST or (op.kind in KINDS and KINDS[op.kind].learns) for op in program)


def is_learnable(description: PolicyDescription | None) -> TypeGuard[PolicyDescription]:
    """True if numpy can learn all of it."""
    return description is not None and description.program is not None and learns(description.program)


def trained(program: Iterable[Op]) -> list[str]:
    """The names of the tensors that gradient descent changes."""
    return [name for op in program if op.kind in KINDS and KINDS[op.kind].trained for name in op.tensors]


def _columns(names: Sequence[str], places: Mapping[str, slice]) -> Place:
    if list(names) == list(places):
        return None
    wanted = [places[name] for name in names]
    if all(left.stop == right.start for left, right in zip(wanted, wanted[1:], strict=False)):
        return slice(wanted[0].start, wanted[-1].stop)
    return np.concatenate([np.arange(place.start, place.stop) for place in wanted])
