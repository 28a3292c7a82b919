"""Hand-written gradients of multi-layer perceptrons (linear layers and ReLUs).

N networks of one shape are computed together: each layer is one batched matrix product. In networks of a few small layers
automatic differentiation costs as much as the arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from learner.networks.parts import Concat

Layer = tuple[Tensor, Tensor]  # weight [N, out, in], bias [N, 1, out]


def layers(modules: Iterable[nn.Module]) -> list[Layer]:
    """The layers of the network that `modules` form in sequence, as views of the parameters.

    Empty unless the network is an optional Concat, then linear layers with a ReLU between each two.
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
    """Views of a linear layer's parameters, with N = 1."""
    return linear.weight.detach()[None], linear.bias.detach()[None, None]


def forward(layers: list[Layer], inputs: Tensor) -> list[Tensor]:
    """The input of each layer, then the output of the last: [N, B, …] each. ReLU follows every layer but the last.

    inputs: [N, B, in]. Call it under no_grad.
    """
    seen = [inputs]
    for weight, bias in layers:
        if len(seen) > 1:
            seen[-1].relu_()
        seen.append(torch.baddbmm(bias, seen[-1], weight.transpose(1, 2)))
    return seen


def errors(layers: list[Layer], seen: list[Tensor], gradient: Tensor) -> list[Tensor]:
    """Gradients by each layer's output before its ReLU, given that by the network's output, `gradient` [N, B, out]."""
    found = [gradient]
    for (weight, _), values in zip(layers[:0:-1], seen[-2:0:-1], strict=True):
        found.append(torch.ops.aten.threshold_backward(torch.bmm(found[-1], weight), values, 0.0))
    return found[::-1]


def gradients(found: list[Tensor], seen: list[Tensor], items: slice) -> list[Layer]:
    """Gradients by each layer's weight and bias, summed over `items` of B; `found` comes from errors()."""
    return [
        (torch.bmm(error[:, items].transpose(1, 2), values[:, items]), error[:, items].sum(1, keepdim=True))
        for error, values in zip(found, seen[:-1], strict=True)
    ]


class KnownGradients:
    """A loss with hand-written gradients: backward() adds them to those of the parameters."""

    def __init__(self, value: Tensor, found: Sequence[Tensor], parameters: Sequence[nn.Parameter], kept_bytes: int) -> None:
        """`value` is 0-d; `found` has a gradient for each parameter. `kept_bytes`: memory of the intermediate results."""
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
    """The loss `value`, 0-d, with its gradients; while torch.compile is tracing, in a form that it can trace. `kept` is the
    result of forward()."""
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
