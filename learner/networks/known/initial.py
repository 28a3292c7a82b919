"""Initial weights of described networks in numpy, with the distributions of torch's modules.

Orthogonal: Saxe et al. 2014 (arXiv:1312.6120). Normal with variance gain² / fan-in: He et al. 2015 (arXiv:1502.01852, eq. 10).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from learner.description import Op, PolicyDescription
from learner.program.network import learns

Shape = tuple[int, ...]
# A linear layer's weight [outputs, inputs] and bias, or those of several layers [N, outputs, inputs], by their shapes.
Draw = Callable[[np.random.Generator, Shape, Shape], tuple[np.ndarray, np.ndarray]]
ONES = {"rescale": (0,), "layer_norm": (0,), "inputs": (2,)}  # tensors of an op that begin at 1: a scale, a weight, a variance


class Initialisation(NamedTuple):
    """How linear layers begin."""

    inner: Draw
    last: Draw  # that of the head


def initial(
    description: PolicyDescription, how: Initialisation, random: np.random.Generator, log_std: float = 0.0
) -> dict[str, np.ndarray]:
    """Initial weights by name, in the order of the state_dict. `log_std`: that of a policy with continuous actions, if it does
    not depend on the observation. The description needs a program that learns()."""
    assert description.program is not None and learns(description.program)
    found = {name: np.zeros(shape, dtype) for name, (shape, dtype) in description.tensors.items()}
    layers = [op for op in description.program if op.kind == "linear"]
    for op in description.program:
        if op.kind == "linear":
            _draw(found, op, how.last if op is layers[-1] else how.inner, random)
        for place in ONES.get(op.kind, ()):
            if op.tensors:
                found[op.tensors[place]].fill(1.0)
        if op.kind == "log_std":
            found[op.tensors[0]].fill(log_std)
    return found


def _draw(found: dict[str, np.ndarray], op: Op, draw: Draw, random: np.random.Generator) -> None:
    weight, bias = (found[name] for name in op.tensors)
    weight[...], bias[...] = draw(random, weight.shape, bias.shape)


def orthogonal(gain: float) -> Draw:
    """Orthogonal rows or columns, whichever are fewer, of length `gain`; biases are 0."""

    def draw(random: np.random.Generator, weight: Shape, bias: Shape) -> tuple[np.ndarray, np.ndarray]:
        rows, columns = weight
        factor, triangle = np.linalg.qr(random.standard_normal((max(weight), min(weight)), np.float32))
        factor *= gain * np.sign(np.diagonal(triangle))  # otherwise their directions would not be uniform
        return factor.T if rows < columns else factor, np.zeros(bias, np.float32)

    return draw


def he_normal(gain: float) -> Draw:
    """Normal; biases are 0."""

    def draw(random: np.random.Generator, weight: Shape, bias: Shape) -> tuple[np.ndarray, np.ndarray]:
        deviation = np.float32(gain / math.sqrt(weight[-1]))
        return random.standard_normal(weight, np.float32) * deviation, np.zeros(bias, np.float32)

    return draw


def uniform(random: np.random.Generator, weight: Shape, bias: Shape) -> tuple[np.ndarray, np.ndarray]:
    """Weights and biases uniform within 1 / sqrt(fan-in), as torch's linear layers begin, too."""
    bound = 1 / math.sqrt(weight[-1])
    drawn = random.uniform(-bound, bound, weight), random.uniform(-bound, bound, bias)
    return drawn[0].astype(np.float32), drawn[1].astype(np.float32)
