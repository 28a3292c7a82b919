"""Layers of linear units and ReLUs, differentiated by hand: N networks of one shape side by side, as one batched product each.

For nets of a few small layers automatic differentiation costs as much as the arithmetic does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learner.networks.parts import Concat

Layer = tuple[Tensor, Tensor]  # weight [N, out, in], bias [N, 1, out]


def layers(modules: Iterable[nn.Module]) -> list[Layer]:
    """The layers of one network that is `modules` one after the other: the parameters' own memory.

    None where a part is something else than a linear unit or a ReLU, after inputs side by side; ReLU is between all layers.
    """
    leaves = [leaf for module in modules for leaf in _leaves(module)]
    if leaves and type(leaves[0]) is Concat:
        del leaves[0]
    wanted = [nn.Linear if number % 2 == 0 else nn.ReLU for number in range(len(leaves))]
    if len(leaves) % 2 == 0 or any(type(leaf) is not kind for leaf, kind in zip(leaves, wanted, strict=True)):
        return []
    return [layer(leaf) for leaf in leaves if isinstance(leaf, nn.Linear)]


def _leaves(module: nn.Module) -> list[nn.Module]:
    if type(module) is nn.Sequential:
        return [leaf for part in module for leaf in _leaves(part)]
    return [module]


def layer(linear: nn.Linear) -> Layer:
    """The memory of a layer's parameters, as one of one network."""
    return linear.weight.detach()[None], linear.bias.detach()[None, None]


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


class KnownGradients:
    """A loss whose gradient was computed by hand: backward() adds it to the parameters' gradients."""

    def __init__(self, value: Tensor, found: Sequence[Tensor], parameters: Sequence[nn.Parameter], kept_bytes: int) -> None:
        """`value` is 0-d; `found` has a gradient for each parameter. `kept_bytes`: memory held until all were computed."""
        self._value, self._found, self._parameters, self.kept_bytes = value, found, parameters, kept_bytes

    def __mul__(self, share: float | Tensor) -> KnownGradients:
        return KnownGradients(
            self._value * share, [gradient * share for gradient in self._found], self._parameters, self.kept_bytes
        )

    def backward(self) -> None:
        for parameter, gradient in zip(self._parameters, self._found, strict=True):
            parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)

    def detach(self) -> Tensor:
        return self._value


def known_gradients(
    value: Tensor, found: Sequence[Tensor], parameters: Sequence[nn.Parameter], kept: Iterable[Tensor]
) -> KnownGradients | Tensor:
    """The loss `value`, 0-d, with its gradients; in a form that torch's compiler can trace where it is at work. `kept` is what
    forward() gave."""
    if not torch.compiler.is_compiling():
        return KnownGradients(value, found, parameters, sum(values.numel() * values.element_size() for values in kept))
    with torch.enable_grad():
        loss: Tensor = _Traced.apply(value, found, *parameters)  # type: ignore[no-untyped-call]
    return loss


class _Traced(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, loss: Tensor, found: Sequence[Tensor], *parameters: Tensor) -> Tensor:
        ctx.found = found
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:  # type: ignore[override]
        return (None, None, *(gradient * part for part in ctx.found))
