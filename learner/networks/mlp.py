"""Torsos for vectors: a multi-layer perceptron, or none at all."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from torch import nn

from learner.networks.parts import Concat, Fields

Shapes = Mapping[str, tuple[int, ...]]
Activation = Literal["relu", "tanh"]


def mlp(
    inputs: Shapes,
    width: int = 256,
    layers: int = 2,
    activation: Activation = "relu",
    apart: bool = False,
    layer_norm: bool = False,
) -> nn.Module:
    """Hidden layers over all inputs concatenated. `apart`: each of several inputs has its own first layer. `layer_norm`: layer
    normalisation before each activation."""
    parts: list[nn.Module] = [Concat()]
    features = sum(map(math.prod, inputs.values()))
    if apart and len(inputs) > 1:
        parts = [Fields({name: vector_branch(shape, width, activation, layer_norm) for name, shape in inputs.items()})]
        features, layers = width * len(inputs), layers - 1
    for _ in range(layers):
        parts += hidden_layer(features, width, activation, layer_norm)
        features = width
    return nn.Sequential(*parts)


def linear(inputs: Shapes) -> nn.Module:
    """No layer: the head is then a linear function of the observation."""
    return nn.Sequential(Concat())


def vector_branch(shape: tuple[int, ...], width: int, activation: Activation = "relu", layer_norm: bool = False) -> nn.Module:
    """One hidden layer over one input."""
    flatten: list[nn.Module] = [nn.Flatten()] if len(shape) > 1 else []
    return nn.Sequential(*flatten, *hidden_layer(math.prod(shape), width, activation, layer_norm))


def hidden_layer(features: int, width: int, activation: Activation = "relu", layer_norm: bool = False) -> list[nn.Module]:
    """Layer normalisation: Ba et al. 2016 (arXiv:1607.06450)."""
    normalised: list[nn.Module] = [nn.LayerNorm(width)] if layer_norm else []
    return [nn.Linear(features, width), *normalised, active(activation)]


def active(name: Activation) -> nn.Module:
    return nn.ReLU(inplace=True) if name == "relu" else nn.Tanh()
