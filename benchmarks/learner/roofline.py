"""What an update of the Nature network takes at the least: arithmetic, bytes of the device's memory, bytes from the host.

Counted from the shapes, for double Q-learning: three passes forward (online now, online and target next), one backward, Adam.
"""

from __future__ import annotations

from typing import NamedTuple

PIXELS = 84 * 84
FORWARD_PASSES = 3
# (outputs per item, products per output, weights) of the layers up to the head's, stack of 4: 84 -> 20 -> 9 -> 7 pixels.
CONVOLUTIONS = ((20 * 20 * 32, 8 * 8 * 4), (9 * 9 * 64, 4 * 4 * 32), (7 * 7 * 64, 3 * 3 * 64))
CHANNELS = (32, 64, 64)
MOMENTS_BYTES = 4 * 7  # of a parameter when Adam steps: reads it, its gradient and two moments, writes it and the moments
GRADIENT_BYTES = 4 * 2  # written by the backward pass, read once more to be clipped


class Work(NamedTuple):
    """Of one update."""

    flops: float
    device_bytes: float
    host_bytes: float


def nature_update(items: int, stack: int, n_step: int, hidden: int, outputs: int, value_bytes: int) -> Work:
    """Of a batch of so many items whose network has `outputs` outputs and computes in values of `value_bytes`.

    Arithmetic: two operations a product; the backward pass takes two products for each of the forward one's, but for the first
    layer, whose input needs no gradient. Bytes: every layer reads its input and writes its output once; the backward pass reads
    both gradient and input and writes a gradient; the stacks are gathered and converted apart. What a cache spares is not
    counted, nor what badly fused kernels move twice.
    """
    assert stack == 4, "the first convolution is counted for a stack of four"
    linear = ((hidden, CONVOLUTIONS[-1][0]), (outputs, hidden))
    products = [out * each for out, each in (*CONVOLUTIONS, *linear)]
    forward, backward = sum(products), 2 * sum(products) - products[0]
    flops = 2.0 * items * (FORWARD_PASSES * forward + backward)

    stacked, values = stack * PIXELS, sum(out for out, _ in (*CONVOLUTIONS, *linear))
    gathered = 2 * stacked + stacked + value_bytes * stacked  # read, written; read again, written as values
    one_pass = gathered + value_bytes * (stacked + 2 * values)
    back = value_bytes * (stacked + 3 * values)
    weights = sum(channels * each for channels, (_, each) in zip(CHANNELS, CONVOLUTIONS, strict=True))
    weights += sum(out * each for out, each in linear) + sum(CHANNELS) + hidden + outputs
    by_weight = weights * (value_bytes * (FORWARD_PASSES + 1) + GRADIENT_BYTES + MOMENTS_BYTES)
    device_bytes = items * (FORWARD_PASSES * one_pass + back) + by_weight
    return Work(flops, float(device_bytes), float(items * (stack + n_step) * PIXELS))


def bounds(work: Work, flops_per_second: float, device_bytes_per_second: float, host_bytes_per_second: float) -> dict[str, float]:
    """The most updates per second that each of the three would allow."""
    return {
        "arithmetic": flops_per_second / work.flops,
        "device memory": device_bytes_per_second / work.device_bytes,
        "host to device": host_bytes_per_second / work.host_bytes,
    }
