"""Adam (Kingma and Ba 2015, arXiv:1412.6980), in the implementation that is fastest on the device."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.adam import adam

from learner.devices.capabilities import Capabilities

BETAS = (0.9, 0.999)
EXEMPT = ("add_param_group", "zero_grad", "state_dict", "load_state_dict")  # methods that torch exempts from compilation


def make_adam(groups: list[dict[str, Any]], learning_rate: float, epsilon: float, able: Capabilities) -> Optimizer:
    """Adam for these parameter groups. All implementations have the same state_dict, so a checkpoint fits each of them."""
    _avoid_compiler_import()
    if not able.lerp:
        return PlainAdam(groups, learning_rate, epsilon)
    return (HostAdam if able.adam == "fused" and able.synchronous else TorchAdam)(
        groups,
        lr=learning_rate,
        betas=BETAS,
        eps=epsilon,
        fused=able.adam == "fused",
        foreach=able.adam == "foreach",
        capturable=able.graphs,
    )


def _avoid_compiler_import() -> None:
    """Prevents the import of torch's compiler (torch._dynamo), which takes as long as that of torch itself.

    At its first call an exempt method imports the compiler, makes its exempt form and stores it in an attribute. This stores the
    method itself there. The learner compiles no code that calls an optimiser, so both forms do the same. A torch without this
    attribute imports its compiler as before.
    """
    for name in EXEMPT:
        if (function := getattr(getattr(Optimizer, name), "__wrapped__", None)) is not None:
            setattr(function, "__dynamo_disable", function)


class TorchAdam(torch.optim.Adam):
    """torch.optim.Adam whose `step` does not import torch's compiler. torch's imports it to exempt the step from compilation."""

    step = torch.no_grad()(inspect.unwrap(torch.optim.Adam.step))


class HostAdam(TorchAdam):
    """torch's fused step on a CPU, without what else torch.optim.Adam does at each: on a small network that takes half as long
    as the step itself."""

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient. A closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            moving = [parameter for parameter in group["params"] if parameter.grad is not None]
            states = [_moments(self.state[parameter], parameter) for parameter in moving]
            beta1, beta2 = group["betas"]
            adam(
                moving,
                [parameter.grad for parameter in moving],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                [state["step"] for state in states],
                fused=True,
                grad_scale=getattr(self, "grad_scale", None),  # of GradScaler, as found_inf
                found_inf=getattr(self, "found_inf", None),
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=group["lr"],
                weight_decay=0.0,
                eps=group["eps"],
                maximize=False,
            )


def _moments(state: dict[str, Tensor], parameter: Tensor) -> dict[str, Tensor]:
    """The state of a parameter, made where there is none."""
    if not state:
        state["step"] = torch.zeros(())  # on the host, where it is read
        state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
    return state


class PlainAdam(Optimizer):
    """Adam made of operations that every device has: torch's own uses lerp, which DirectML runs on the CPU.

    Algorithm 1 of the paper, with both bias corrections in the step size as at the end of section 2; epsilon is added to the
    corrected root, as torch does.
    """

    def __init__(self, groups: list[dict[str, Any]], learning_rate: float, epsilon: float) -> None:
        """As torch.optim.Adam; a group may have its own `lr`."""
        super().__init__(groups, {"lr": learning_rate, "betas": BETAS, "eps": epsilon})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Updates every parameter that has a gradient. A closure is not supported."""
        assert closure is None
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._move(parameter, parameter.grad, group)

    def _move(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state = _moments(self.state[parameter], parameter)
        first, second = group["betas"]
        state["step"] += 1
        step = float(state["step"])
        mean = state["exp_avg"].mul_(first).add_(gradient, alpha=1 - first)
        square = state["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = square.sqrt().mul_((1 - second**step) ** -0.5).add_(group["eps"])
        parameter.addcdiv_(mean, root, value=-group["lr"] / (1 - first**step))
