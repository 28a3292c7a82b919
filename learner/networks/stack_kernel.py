"""One Triton kernel that stacks images by index and dequantises them. Without it these are five operations, which write the
stacks three times. Imported only where triton is installed.

It has run under Triton's interpreter only, not yet on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 2_048  # values that a program writes
LEAST_PIXELS = 16


@triton.jit
def _stack(
    rows: tl.tensor,
    index: tl.tensor,
    table: tl.tensor,
    out: tl.tensor,
    window_rows: tl.tensor,
    STACK: tl.constexpr,
    CHANNELS: tl.constexpr,
    PIXELS: tl.constexpr,
    PIXEL_STRIDE: tl.constexpr,
    CHANNEL_STRIDE: tl.constexpr,
    TILE_PIXELS: tl.constexpr,
    TILE_CHANNELS: tl.constexpr,
) -> None:
    """A program writes some pixels of one item, in all channels of its stack."""
    item = tl.program_id(0).to(tl.int64)
    pixel = tl.program_id(1) * TILE_PIXELS + tl.arange(0, TILE_PIXELS)
    channel = tl.arange(0, TILE_CHANNELS)  # the oldest frame's first
    exists = channel < STACK * CHANNELS
    row = item * window_rows + tl.load(index + item * STACK + channel // CHANNELS, mask=exists, other=0)
    source = (row * CHANNELS + channel % CHANNELS) * PIXELS
    inside = (pixel < PIXELS)[:, None] & exists[None, :]
    stored = tl.load(rows + source[None, :] + pixel[:, None], mask=inside, other=0)
    values = tl.load(table + stored.to(tl.int32), mask=inside, other=0.0)
    place = item * (STACK * CHANNELS * PIXELS) + pixel[:, None] * PIXEL_STRIDE + channel[None, :] * CHANNEL_STRIDE
    tl.store(out + place, values, mask=inside)


def stack(rows: Tensor, index: Tensor, table: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Images [R, C, H, W] uint8 by index [N, stack] into the rows, or windows [N, W, C, H, W] by index into each item's window ->
    [N, stack * C, H, W] of the values that `table` [256] has for the stored ones.

    A table, because then no rounding can differ from torch's, which has made it. The index is not checked: replay has made it.
    """
    items, number = index.shape
    channels, height, width = rows.shape[-3:]
    planes, pixels = number * channels, height * width
    out = torch.empty((items, planes, height, width), dtype=table.dtype, device=rows.device, memory_format=memory_format)
    channels_last = memory_format == torch.channels_last
    tile_channels = triton.next_power_of_2(planes)
    tile_pixels = max(TILE // tile_channels, LEAST_PIXELS)
    _stack[(items, triton.cdiv(pixels, tile_pixels))](
        rows.contiguous(),
        index.contiguous(),
        table,
        out,
        rows.shape[1] if rows.dim() == 5 else 0,
        STACK=number,
        CHANNELS=channels,
        PIXELS=pixels,
        PIXEL_STRIDE=planes if channels_last else 1,
        CHANNEL_STRIDE=1 if channels_last else pixels,
        TILE_PIXELS=tile_pixels,
        TILE_CHANNELS=tile_channels,
    )
    return out
