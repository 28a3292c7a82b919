"""A body with images in int8 on the CPU: the fastest convolutions for an actor.

When new weights arrive they are rounded to 8 bits, with a scale per output channel, after batch normalisation has been folded
into them. Images are bytes already, so the first layer loses nothing. The output of a convolution is rounded to 8 bits between 0
and the largest value that the layer has had since the weights arrived, plus a margin. Where a value exceeds that range, which
shows as the largest byte, the layer is run again with a wider range: so no value is clipped, but the last digits of the result
depend on earlier observations. Vectors and heads stay in float32.

The kernels are oneDNN's on ordinary tensors, as torch.compile calls them on a CPU, because torch's quantised tensors and
torch.ao.quantization are deprecated. They are exact only where the processor accumulates int8 products in 32 bits.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from learner.devices.errors import DeviceError
from learner.networks.base import Body, torso_features
from learner.networks.inputs import Tensors
from learner.networks.parts import Fields
from transport.experience import Column

BITS = 127  # largest weight; -128 is not used, so that scales are symmetric
BYTES = 255  # largest activation: a ReLU's output has no sign
MARGIN = 1.2  # range / largest value so far: more is coarser, less is exceeded more often


def supports(body: Body) -> bool:
    """True if the torso has the form of learner/networks/convolutional.py: branches, of which those of images are convolutions,
    then a hidden layer."""
    torso = body.torso
    if type(torso) is not nn.Sequential or [type(part) for part in torso] != [Fields, nn.Linear, nn.ReLU]:
        return False
    fields = torso[0]
    assert isinstance(fields, Fields)
    images = {field.name for field in body.inputs.images}
    branches = dict(zip(fields.names, fields.branches, strict=True))
    return bool(images) and images <= branches.keys() and all(_convolutional(branches[name]) for name in images)


def _convolutional(branch: nn.Module) -> bool:
    """True if the branch is convolutions, each with a ReLU and perhaps batch normalisation before it, then Flatten."""
    if type(branch) is not nn.Sequential:
        return False
    kinds = [type(part) for part in branch if type(part) is not nn.BatchNorm2d]
    pairs = (len(kinds) - 1) // 2
    return pairs > 0 and kinds == [*[nn.Conv2d, nn.ReLU] * pairs, nn.Flatten]


class QuantisedBody:
    """A body that supports() accepts, in int8."""

    def __init__(self, body: Body) -> None:
        """Raises DeviceError for an image that int8 cannot pad."""
        self._body = body
        self._images: list[tuple[str, list[_Convolution], _Linear]] = []
        self._vectors: list[tuple[str, nn.Module, Tensor]] = []  # name, branch, and its columns of the hidden layer's weight
        self.refresh()

    def refresh(self) -> None:
        """Quantises the body's current weights."""
        assert isinstance(self._body.torso, nn.Sequential)
        fields, hidden, _ = self._body.torso
        assert isinstance(fields, Fields) and isinstance(hidden, nn.Linear)
        self._images, self._vectors, at = [], [], 0
        weight = hidden.weight.detach()
        images = {field.name: field for field in self._body.inputs.images}
        for name, branch in zip(fields.names, fields.branches, strict=True):
            shape = {name: self._body.inputs.shapes[name]}
            columns = weight[:, at : at + torso_features(Fields({name: branch}), shape)]
            at += columns.shape[1]
            if name in images:
                self._images.append((name, _convolutions(images[name], branch), _Linear(columns)))
            else:
                self._vectors.append((name, branch, columns))
        self._bias = hidden.bias.detach()

    def __call__(self, observation: Tensors) -> Tensor:
        """{name: [K, stack, *shape]} as stored -> features [K, hidden] float32. Call it in inference mode."""
        hidden: Tensor | None = None
        for name, convolutions, linear in self._images:
            values, scale = observation[name].flatten(1, -3), 1.0
            for convolution in convolutions:
                values, scale = convolution(values, scale)
            part = linear(values.flatten(1), scale)
            hidden = part if hidden is None else hidden.add_(part)
        assert hidden is not None, "supports() requires an image"
        hidden.add_(self._bias)
        if self._vectors:
            inputs = self._body.inputs.read_vectors(observation)
            for name, branch, columns in self._vectors:
                hidden.add_(functional.linear(branch(inputs[name]), columns))
        return hidden.relu_()


class _Convolution:
    """A convolution and its ReLU on uint8 activations."""

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor, scale: float | None = None, zero: int = 0) -> None:
        """`weight` and `bias` are the layer's, with batch normalisation folded in. For the first layer `scale` and `zero` define
        its input's values, scale * (byte - zero); the scale of later inputs is passed with them."""
        self._stride, self._padding = list(layer.stride), [int(size) for size in layer.padding]
        self._bias, self._input_scale, self._zero = bias, scale, zero
        rounded, self._scales, self._zeros = _rounded(weight)
        self._weight = torch.ops.onednn.qconv_prepack(
            rounded, self._scales, scale or 1.0, zero, self._stride, self._padding, [1, 1], 1, None
        )
        self._scale = 0.0  # of its output; 0: not known yet

    def __call__(self, values: Tensor, scale: float) -> tuple[Tensor, float]:
        """Input [K, C, H, W] uint8 and its scale -> output and its scale."""
        scale = self._input_scale or scale
        if self._scale:
            given = self._run(values, scale, torch.uint8)
            if given.numpy().max() < BYTES:
                return given, self._scale
        greatest = float(self._run(values, scale, torch.float32).max())
        self._scale = greatest * MARGIN / BYTES
        return self._run(values, scale, torch.uint8), self._scale or 1.0  # where all values are 0 any scale is right

    def _run(self, values: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        conv: Any = torch.ops.onednn.qconv2d_pointwise.default
        weight, own = (self._weight, self._scales, self._zeros, self._bias), self._scale if dtype is torch.uint8 else 1.0
        where = (self._stride, self._padding, [1, 1], 1)
        given: Tensor = conv(values, scale, self._zero, *weight, *where, own or 1.0, 0, dtype, "relu", [], "")
        return given


class _Linear:
    """A linear layer on uint8 activations, with float32 output."""

    def __init__(self, weight: Tensor) -> None:
        """[out, in]."""
        rounded, self._scales, self._zeros = _rounded(weight)
        self._weight = torch.ops.onednn.qlinear_prepack(rounded, None)

    def __call__(self, values: Tensor, scale: float) -> Tensor:
        """[K, in] uint8 and its scale -> [K, out] float32."""
        linear: Any = torch.ops.onednn.qlinear_pointwise.default
        weight = (self._weight, self._scales, self._zeros, None)
        given: Tensor = linear(values, scale, 0, *weight, 1.0, 0, torch.float32, "none", [], "")
        return given


def _convolutions(field: Column, branch: nn.Module) -> list[_Convolution]:
    """The branch's convolutions, each with its batch normalisation. Raises DeviceError for an image that int8 cannot pad."""
    layers = list(branch.children())
    made: list[_Convolution] = []
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if not isinstance(layer, nn.Conv2d):
            continue
        weight, bias = _folded(layer, after if isinstance(after, nn.BatchNorm2d) else None)
        if made:
            made.append(_Convolution(layer, weight, bias))
            continue
        zero = min(max(round(-field.offset / field.scale), 0), BYTES)  # the byte whose value is nearest to 0, for padding
        left = field.offset + zero * field.scale  # its value, an error in every value where no byte is exactly 0
        if abs(left) > field.scale and any(layer.padding):
            raise DeviceError("precision int8 is not available on cpu: no byte of this image means 0, which padding needs")
        made.append(_Convolution(layer, weight, bias + left * weight.sum((1, 2, 3)), field.scale, zero))
    return made


def _folded(layer: nn.Conv2d, normalisation: nn.BatchNorm2d | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution with the batch normalisation after it folded in, by its running statistics."""
    weight = layer.weight.detach()
    bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    if normalisation is None:
        return weight, bias
    mean, variance = normalisation.running_mean, normalisation.running_var
    assert mean is not None and variance is not None
    factor = normalisation.weight.detach() * (variance + normalisation.eps).rsqrt()
    return weight * factor[:, None, None, None], normalisation.bias.detach() + (bias - mean) * factor


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[out, …] float32 -> int8, and for each output channel its scale and its zero point, 0."""
    scales = weight.flatten(1).abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / BITS
    shape = (-1, *[1] * (weight.dim() - 1))
    return (weight / scales.view(shape)).round().to(torch.int8), scales, torch.zeros(len(scales), dtype=torch.int32)


def check() -> None:
    """Raises DeviceError where int8 is not available."""
    if reason := missing():
        raise DeviceError(f"precision int8 is not available on cpu: {reason}; use auto, bfloat16 or float32")


@cache
def missing() -> str:
    """Why int8 is not available; empty if it is. Tries a convolution of the largest products, whose sum is known."""
    layer = nn.Conv2d(4, 16, 8, 4)
    try:
        with torch.inference_mode():
            convolution = _Convolution(layer, torch.full((16, 4, 8, 8), float(BITS)), torch.zeros(16), 1.0)
            found = convolution._run(torch.full((1, 4, 20, 20), BYTES, dtype=torch.uint8), 1.0, torch.float32)
    except (AttributeError, RuntimeError):
        return "this torch has no int8 kernels for this processor"
    if bool((found != float(4 * 8 * 8 * BITS * BYTES)).any()):
        return "this processor cannot add up int8 products in 32 bits (no VNNI)"
    return ""


def main() -> int:
    """Exit status 0 if int8 is available, else 2 with the reason on standard output."""
    try:
        check()
    except DeviceError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
