"""Convolutions of images in numpy, forwards only: windows are gathered as rows, then one matrix product.

A stored image has its channels first, [N, stack, *shape] bytes; between convolutions the channels come last, [N, height * width *
channels], so that a row of a window is one run of memory. A run is copied as one item whatever its length, which takes a third of
the time of copying its numbers. Stored bytes are gathered before they become floats; their scale and offset are in the weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from learner.program.buffers import Buffer
from learner.program.layers import Arrays, Layer, LayerNorm

BLOCK = 2**18  # numbers of the windows that are gathered at once: they stay in the processor's cache
FLOAT = np.dtype(np.float32)
CONVOLUTION = "convolution"


def windows(size: Sequence[int], kernel: Sequence[int], stride: Sequence[int], padding: Sequence[int]) -> list[int]:
    """The numbers of windows along height and width of an image of this size, which are the size of the result."""
    sides = zip(size, kernel, stride, padding, strict=True)
    return [(length + 2 * pad - wide) // step + 1 for length, wide, step, pad in sides]


class Convolution(Layer):
    """torch.nn.Conv2d on images [channels, height, width] = `shape`. `stored` is scale and offset of an image as it is stored,
    which only a first convolution reads; None: floats with their channels last."""

    trained, learns = True, False

    def __init__(
        self,
        tensors: Arrays,
        gradients: Arrays,
        in_place: bool,
        shape: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        stored: Sequence[float] | None = None,
    ) -> None:
        super().__init__(tensors, gradients, in_place)
        channels, height, width = shape
        self._filters, _, *self._kernel = tensors[0].shape
        self._planes, self._each = (channels, 1) if stored else (1, channels)  # numbers of a pixel: apart, or adjacent
        self._stride, self._padding, self._pixels = stride, padding, channels * height * width
        self._scale, self._offset = stored or (1.0, 0.0)
        self._type = np.dtype(np.uint8) if stored and not any(padding) else FLOAT  # of what is gathered
        self._padded_size = [size + 2 * pad for size, pad in zip((height, width), padding, strict=True)]
        self._size = windows((height, width), self._kernel, stride, padding)
        self._matrix = np.zeros((tensors[0][0].size, self._filters), np.float32)
        self._bias = np.zeros(self._filters, np.float32)
        self._padded = np.empty((0, self._planes, *self._padded_size, self._each), np.float32)
        self._windows, self._bytes = Buffer(), np.empty(0, np.uint8)

    def refresh(self) -> None:
        kernels = self._tensors[0].reshape(self._filters, self._planes, self._each, *self._kernel)
        np.copyto(self._matrix.T, kernels.transpose(0, 1, 3, 4, 2).reshape(self._filters, -1))
        self._bias[...] = self._tensors[1] if len(self._tensors) > 1 else 0
        self._bias += np.float32(self._offset) * self._matrix.sum(0)
        self._matrix *= np.float32(self._scale)

    def forward(self, values: np.ndarray) -> np.ndarray:
        """The image as it is stored, or [N, height * width * channels] -> [N, height * width * filters]."""
        count, rows = len(values), self._size[0] * self._size[1]
        assert values.size == count * self._pixels, f"expected images of {self._pixels} numbers, got {list(values.shape)}"
        image = np.ascontiguousarray(values) if not any(self._padding) else self._pad(values)
        out = self._out((count * rows, self._filters))
        block = max(BLOCK // (rows * len(self._matrix)), 1)
        for start in range(0, count, block):
            some = min(block, count - start)
            np.dot(self._gather(image, start, some), self._matrix, out=out[start * rows : (start + some) * rows])
        out += self._bias
        return out.reshape(count, -1)

    def _pad(self, values: np.ndarray) -> np.ndarray:
        """[N, planes, height, width, each] floats, with a border of what stands for zero."""
        count, (down, right) = len(values), self._padding
        if count > len(self._padded):
            self._padded = np.full((count, *self._padded.shape[1:]), -self._offset / self._scale, np.float32)
        inner = self._padded[:count, :, down : self._padded_size[0] - down, right : self._padded_size[1] - right]
        np.copyto(inner, values.reshape(inner.shape), casting="unsafe")
        return self._padded

    def _gather(self, image: np.ndarray, start: int, count: int) -> np.ndarray:
        """The windows of `count` images from the one at `start` on -> [count * height * width, numbers of a window]."""
        (height, width), (down, right), each = self._padded_size, self._stride, self._each * self._type.itemsize
        line, run = width * each, np.dtype((np.void, self._kernel[1] * each))
        plane = height * line
        shape = (count, *self._size, self._planes, self._kernel[0])
        strides = (self._planes * plane, down * line, right * each, plane, line)
        runs: Any = np.ndarray(shape, run, image, start * strides[0], strides)  # type: ignore[call-overload]
        windows = self._windows((count * self._size[0] * self._size[1], len(self._matrix)))
        if self._type == FLOAT:
            np.copyto(windows.view(run).reshape(shape), runs)
            return windows
        if windows.size > self._bytes.size:
            self._bytes = np.empty(windows.size, np.uint8)
        found = self._bytes[: windows.size]
        np.copyto(found.view(run).reshape(shape), runs)
        np.copyto(windows.reshape(-1), found, casting="unsafe")
        return windows


class ChannelsFirst(Layer):
    """[N, height * width * channels] -> [N, channels * height * width], the order of torch.nn.Flatten."""

    learns = False

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, channels: int) -> None:
        super().__init__(tensors, gradients, in_place)
        self._channels = channels

    def forward(self, values: np.ndarray) -> np.ndarray:
        count = len(values)
        pixels = values.reshape(count, -1, self._channels).swapaxes(1, 2)
        out = self._out(pixels.shape)
        np.copyto(out, pixels)
        return out.reshape(count, -1)


class BatchNorm(Layer):
    """torch.nn.BatchNorm2d by its running statistics. Channels come last."""

    trained, learns = True, False

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, eps: float) -> None:
        super().__init__(tensors, gradients, in_place)
        self._eps = np.float32(eps)

    def forward(self, values: np.ndarray) -> np.ndarray:
        weight, bias, mean, variance, *_ = self._tensors
        factor = weight / np.sqrt(variance + self._eps)
        out = np.multiply(values.reshape(-1, len(weight)), factor, out=self._out((values.size // len(weight), len(weight))))
        out += bias - mean * factor
        return out.reshape(values.shape)


class GroupNorm(LayerNorm):
    """torch.nn.GroupNorm of one group: over all channels and pixels. Channels come last."""

    learns = False

    def __init__(self, tensors: Arrays, gradients: Arrays, in_place: bool, eps: float) -> None:
        super().__init__((), (), in_place, eps)
        self._weight_and_bias = tensors

    def forward(self, values: np.ndarray) -> np.ndarray:
        normal = super().forward(values)
        weight, bias = self._weight_and_bias
        pixels = normal.reshape(-1, len(weight))
        pixels *= weight
        pixels += bias
        return normal


OF_IMAGES: dict[str, type[Layer]] = {
    CONVOLUTION: Convolution,
    "channels_first": ChannelsFirst,
    "batch_norm": BatchNorm,
    "group_norm": GroupNorm,
}
