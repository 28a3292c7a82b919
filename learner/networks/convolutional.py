"""The torsos for images: convolutions, and one hidden layer.

nature: the convolutions of Mnih et al. 2015 (doi:10.1038/nature14236, Methods). compact: those of van Hasselt et al. 2019
(arXiv:1906.05243), which take a sixth of the multiplications; images of 36 to 59 pixels have three finer ones, since of 42 pixels
theirs leave one, and nature's one, too.
"""

from __future__ import annotations

from torch import nn

from learner.networks.known.torsos import COMPACT, LARGE, Layers, suited
from learner.networks.mlp import Shapes, hidden_layer, vector_branch
from learner.networks.parts import Fields


def nature(
    inputs: Shapes,
    width: int = 512,
    batch_norm: bool = False,
    apart: bool = False,
    layer_norm: bool = False,
    filters: float = 1.0,
) -> nn.Module:
    """Convolutions for each image, then one hidden layer over all their features and the other inputs.

    `batch_norm`: batch normalisation before each ReLU of the convolutions, which then have no bias of their own. `apart`: each
    other input has its own hidden layer. `layer_norm`: layer normalisation before each ReLU, that of a convolution over all its
    channels and pixels. `filters`: factor of the convolutions' numbers of filters; with 0.5 an update takes about a third of the
    time. Raises ValueError where no input is an image, or `filters` leaves none.
    """
    return _torso(inputs, LARGE, width, batch_norm, apart, layer_norm, filters)


def nature_batchnorm(inputs: Shapes, width: int = 512, apart: bool = False) -> nn.Module:
    """As nature(), with batch normalisation."""
    return _torso(inputs, LARGE, width, batch_norm=True, apart=apart)


def compact(inputs: Shapes, width: int = 256, apart: bool = False, layer_norm: bool = False, filters: float = 1.0) -> nn.Module:
    """As nature(), with convolutions that compute faster, finer ones for images below 60 pixels: for a learner without a GPU."""
    return _torso(inputs, COMPACT, width, False, apart, layer_norm, filters)


def _torso(
    inputs: Shapes,
    large: Layers,
    width: int,
    batch_norm: bool = False,
    apart: bool = False,
    layer_norm: bool = False,
    filters: float = 1.0,
) -> nn.Module:
    """As nature(). `large`: the convolutions for large images."""
    if not filters > 0:
        raise ValueError(f"filters {filters} leaves its convolutions none: choose a factor above 0")
    if not any(len(shape) == 3 for shape in inputs.values()):
        raise ValueError("it needs an image, but no observation field is one: use network auto or mlp")
    branches: dict[str, nn.Module] = {}
    features = 0
    for name, shape in inputs.items():
        if len(shape) == 3:
            branches[name], size = convolutions(shape, batch_norm, layer_norm, filters, large)
        else:
            branches[name], size = (
                (vector_branch(shape, width, layer_norm=layer_norm), width) if apart else (nn.Flatten(), shape[0])
            )
        features += size
    return nn.Sequential(Fields(branches), *hidden_layer(features, width, layer_norm=layer_norm))


def convolutions(
    shape: tuple[int, ...], batch_norm: bool, layer_norm: bool, filters: float, large: Layers
) -> tuple[nn.Module, int]:
    """The convolutions for an image [C, H, W], and the number of their features. Small images get small kernels."""
    channels, height, width = shape
    layers: list[nn.Module] = []
    for usual, kernel, stride, padding in suited(large, min(height, width)):
        outputs = max(round(usual * filters), 1)
        layers.append(nn.Conv2d(channels, outputs, kernel, stride, padding, bias=not batch_norm))
        if batch_norm:
            layers.append(nn.BatchNorm2d(outputs))
        if layer_norm:
            layers.append(nn.GroupNorm(1, outputs))  # one group: over channels and pixels
        layers.append(nn.ReLU(inplace=True))
        height, width = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
        channels = outputs
    return nn.Sequential(*layers, nn.Flatten()), channels * height * width
