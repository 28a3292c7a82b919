"""A body with images in int8 on the CPU: an actor's fastest way through convolutions.

Weights are rounded to 8 bits, with a scale for each output channel, whenever new ones come; batch normalisation is part of
them. An image is bytes anyway, so the first layer loses nothing of it. What a convolution gives is rounded to 8 bits between 0
and the greatest value that the layer has given since the weights came, and a margin; where that is exceeded, which the bytes
themselves tell, the layer is run again with a wider range. So nothing is ever cut off, and the last digits of what is given
depend on what was seen before. Vectors stay in float32, and so do the heads.

The kernels are those of oneDNN on ordinary tensors, as torch's own compiler calls them on a CPU: torch's quantised tensors and
torch.ao.quantization are deprecated. Their products are exact only where the processor adds them up in 32 bits.
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

BITS = 127  # greatest weight; -128 is left out, so that scales are symmetric
BYTES = 255  # greatest activation: what comes out of a ReLU has no sign
MARGIN = 1.2  # of a range over what was seen: a wider one is coarser, a narrower one is left more often


def knows(body: Body) -> bool:
    """Whether its torso is made as learner/networks/nature.py makes one: branches, of which those of images are convolutions,
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
    """Whether it is convolutions, each with its ReLU, some with batch normalisation between, and then flattened."""
    if type(branch) is not nn.Sequential:
        return False
    kinds = [type(part) for part in branch if type(part) is not nn.BatchNorm2d]
    pairs = (len(kinds) - 1) // 2
    return pairs > 0 and kinds == [*[nn.Conv2d, nn.ReLU] * pairs, nn.Flatten]


class QuantisedBody:
    """A body that knows() of, in int8."""

    def __init__(self, body: Body) -> None:
        """Raises DeviceError for an image that int8 cannot pad."""
        self._body = body
        self._images: list[tuple[str, list[_Convolution], _Linear]] = []
        self._vectors: list[tuple[str, nn.Module, Tensor]] = []  # branches, with the columns of the hidden layer that read them
        self.refresh()

    def refresh(self) -> None:
        """The body has other weights now: rounds them anew."""
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
        """{name: [K, stack, *shape]} as stored -> what goes into the heads, [K, hidden] float32. Call it in inference mode."""
        hidden: Tensor | None = None
        for name, convolutions, linear in self._images:
            values, scale = observation[name].flatten(1, -3), 1.0
            for convolution in convolutions:
                values, scale = convolution(values, scale)
            part = linear(values.flatten(1), scale)
            hidden = part if hidden is None else hidden.add_(part)
        assert hidden is not None, "a network without images has no use for this"
        hidden.add_(self._bias)
        if self._vectors:
            inputs = self._body.inputs.read_vectors(observation)
            for name, branch, columns in self._vectors:
                hidden.add_(functional.linear(branch(inputs[name]), columns))
        return hidden.relu_()


class _Convolution:
    """One convolution and its ReLU, on bytes."""

    def __init__(self, layer: nn.Conv2d, weight: Tensor, bias: Tensor, scale: float | None = None, zero: int = 0) -> None:
        """`weight` and `bias` are the layer's, normalisation included. `scale` and `zero` say what the bytes of the first layer's
        input mean, scale * (byte - zero); those of the others come with them."""
        self._stride, self._padding = list(layer.stride), [int(size) for size in layer.padding]
        self._bias, self._input_scale, self._zero = bias, scale, zero
        rounded, self._scales, self._zeros = _rounded(weight)
        self._weight = torch.ops.onednn.qconv_prepack(
            rounded, self._scales, scale or 1.0, zero, self._stride, self._padding, [1, 1], 1, None
        )
        self._scale = 0.0  # of what it gives; 0: not known yet

    def __call__(self, values: Tensor, scale: float) -> tuple[Tensor, float]:
        """[K, C, H, W] uint8 and its scale -> the next layer's."""
        scale = self._input_scale or scale
        if self._scale:
            given = self._run(values, scale, torch.uint8)
            if given.numpy().max() < BYTES:
                return given, self._scale
        greatest = float(self._run(values, scale, torch.float32).max())
        self._scale = greatest * MARGIN / BYTES
        return self._run(values, scale, torch.uint8), self._scale or 1.0  # where all is 0 the scale is of no matter

    def _run(self, values: Tensor, scale: float, dtype: torch.dtype) -> Tensor:
        conv: Any = torch.ops.onednn.qconv2d_pointwise.default
        weight, own = (self._weight, self._scales, self._zeros, self._bias), self._scale if dtype is torch.uint8 else 1.0
        where = (self._stride, self._padding, [1, 1], 1)
        given: Tensor = conv(values, scale, self._zero, *weight, *where, own or 1.0, 0, dtype, "relu", [], "")
        return given


class _Linear:
    """A product with bytes, in float32 when it is done."""

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
    """The branch's, each with the normalisation that follows it. Raises DeviceError for an image that int8 cannot pad."""
    layers = list(branch.children())
    made: list[_Convolution] = []
    for layer, after in zip(layers, [*layers[1:], None], strict=True):
        if not isinstance(layer, nn.Conv2d):
            continue
        weight, bias = _folded(layer, after if isinstance(after, nn.BatchNorm2d) else None)
        if made:
            made.append(_Convolution(layer, weight, bias))
            continue
        zero = min(max(round(-field.offset / field.scale), 0), BYTES)  # the byte that stands for 0, which is what pads
        left = field.offset + zero * field.scale  # of every value, where no byte is exactly 0
        if abs(left) > field.scale and any(layer.padding):
            raise DeviceError("precision int8 is not to be had on cpu: this image has no byte for 0, which its edges need")
        made.append(_Convolution(layer, weight, bias + left * weight.sum((1, 2, 3)), field.scale, zero))
    return made


def _folded(layer: nn.Conv2d, normalisation: nn.BatchNorm2d | None) -> tuple[Tensor, Tensor]:
    """Weight and bias of a convolution and of the normalisation after it by running statistics, as one."""
    weight = layer.weight.detach()
    bias = torch.zeros(len(weight)) if layer.bias is None else layer.bias.detach()
    if normalisation is None:
        return weight, bias
    mean, variance = normalisation.running_mean, normalisation.running_var
    assert mean is not None and variance is not None
    factor = normalisation.weight.detach() * (variance + normalisation.eps).rsqrt()
    return weight * factor[:, None, None, None], normalisation.bias.detach() + (bias - mean) * factor


def _rounded(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """[out, …] float32 -> int8, and of each output channel the scale and the zero point, which is 0."""
    scales = weight.flatten(1).abs().amax(1).clamp(min=torch.finfo(torch.float32).tiny) / BITS
    shape = (-1, *[1] * (weight.dim() - 1))
    return (weight / scales.view(shape)).round().to(torch.int8), scales, torch.zeros(len(scales), dtype=torch.int32)


def check() -> None:
    """Raises DeviceError where int8 is not to be had."""
    if reason := _missing():
        raise DeviceError(f"precision int8 is not to be had on cpu: {reason}; use auto, bfloat16 or float32")


@cache
def _missing() -> str:
    """Why this torch has no int8 on this processor; empty if it has. Tries it: the greatest products, whose sum is known."""
    layer = nn.Conv2d(4, 16, 8, 4)
    try:
        with torch.inference_mode():
            convolution = _Convolution(layer, torch.full((16, 4, 8, 8), float(BITS)), torch.zeros(16), 1.0)
            found = convolution._run(torch.full((1, 4, 20, 20), BYTES, dtype=torch.uint8), 1.0, torch.float32)
    except (AttributeError, RuntimeError):
        return "this torch has no such kernels for this processor"
    if bool((found != float(4 * 8 * 8 * BITS * BYTES)).any()):
        return "this processor cannot add up int8 products in 32 bits (no VNNI)"
    return ""


def main() -> int:
    """0 if there is int8 here, else 2 and the reason."""
    try:
        check()
    except DeviceError as error:
        print(error)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
