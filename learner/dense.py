"""Layers of linear units and ReLUs, differentiated by hand: N networks of one shape side by side, as one batched product each.

For nets of a few small layers automatic differentiation costs as much as the arithmetic does.
"""

from __future__ import annotations

import torch
from torch import Tensor

Layer = tuple[Tensor, Tensor]  # weight [N, out, in], bias [N, 1, out]


def forward(layers: list[Layer], inputs: Tensor) -> list[Tensor]:
    """What each layer is given, and what the last one gives: [N, B, …] each. ReLU follows every layer but the last.

    inputs: [N, B, in]. Call this under no_grad.
    """
    seen = [inputs]
    for weight, bias in layers:
        if len(seen) > 1:
            seen[-1].relu_()
        seen.append(torch.baddbmm(bias, seen[-1], weight.transpose(1, 2)))
    return seen


def errors(layers: list[Layer], seen: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """From the gradient of forward()'s last answer, [N, B, out], that of what each layer gives before its ReLU."""
    found = [gradient]
    for (weight, _), values in zip(layers[:0:-1], seen[-2:0:-1], strict=True):
        found.append(torch.ops.aten.threshold_backward(torch.bmm(found[-1], weight), values, 0.0))
    return found[::-1]


def gradients(found: list[Tensor], seen: list[Tensor], items: slice) -> list[Layer]:
    """The gradient of every layer's weight and bias, summed over `items` of B."""
    return [
        (torch.bmm(error[:, items].transpose(1, 2), values[:, items]), error[:, items].sum(1, keepdim=True))
        for error, values in zip(found, seen[:-1], strict=True)
    ]
