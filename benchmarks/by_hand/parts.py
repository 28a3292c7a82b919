"""Parts of updates written by hand: networks, the device with its precision, and the way of priorities to the host."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from learner.config import LearnerConfig
from learner.devices import capabilities as devices
from learner.devices.detection import resolve

Tensors = dict[str, Tensor]


def nature(channels: int, hidden: int) -> nn.Sequential:
    """Mnih et al. 2015 (doi:10.1038/nature14236) up to the last hidden layer, for pictures of 84x84."""
    return nn.Sequential(
        *(nn.Conv2d(channels, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU(), nn.Conv2d(64, 64, 3, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(64 * 7 * 7, hidden), nn.ReLU()),
    )


def mlp(inputs: int, hidden: int) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU())


class Machine:
    """The device with its precision, set up as for a learner."""

    def __init__(self, learner: LearnerConfig, images: bool) -> None:
        self.device = resolve(learner.device)
        devices.set_up(self.device, learner.threads)
        self.able = devices.capabilities(self.device)
        self.precision = devices.precision(learner.precision, self.device, images)
        self.layout = torch.channels_last if self.able.channels_last else torch.contiguous_format
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None

    def autocast(self) -> AbstractContextManager[object]:
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def place(self, network: nn.Module) -> Any:
        return network.to(self.device, memory_format=self.layout)  # type: ignore[call-overload]

    def decode(self, pixels: Tensor) -> Tensor:
        """[N, stack, 84, 84] uint8 as what the first convolution reads."""
        return pixels.to(getattr(torch, self.precision), memory_format=self.layout).mul_(1 / 255)

    def adam(self, parameters: list[nn.Parameter], rate: float, epsilon: float) -> torch.optim.Adam:
        kind = self.able.adam
        return torch.optim.Adam(parameters, lr=rate, eps=epsilon, fused=kind == "fused", foreach=kind == "foreach")

    def step(self, adam: torch.optim.Adam, parameters: list[nn.Parameter], norm: float) -> None:
        """Clips, steps, forgets the gradient."""
        if self.scaler is not None:
            self.scaler.unscale_(adam)
        nn.utils.clip_grad_norm_(parameters, norm)
        if self.scaler is not None:
            self.scaler.step(adam)
            self.scaler.update()
        else:
            adam.step()
        adam.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        (loss if self.scaler is None else self.scaler.scale(loss)).backward()

    def wait(self) -> None:
        """Until the device has done what it was given."""
        torch.zeros(1, device=self.device).cpu()


class Host:
    """Brings priorities to the host: at once where the device is the host, else while the next update is computed."""

    def __init__(self, device: torch.device, items: int) -> None:
        self._events = device.type == "cuda"
        self._memory = [torch.empty(items, pin_memory=True) for _ in range(2)] if self._events else []
        self._done: list[Any] = []
        self.seen = np.zeros(items, np.float32)  # the last priorities that came

    def take(self, priorities: Tensor) -> None:
        if not self._events:
            self.seen = priorities.cpu().numpy()
            return
        memory = self._memory[0]
        self._memory.reverse()
        memory.copy_(priorities, non_blocking=True)
        event = torch.cuda.Event()
        event.record()
        self._done.append((event, memory))
        if len(self._done) > 1:
            event, memory = self._done.pop(0)
            event.synchronize()
            self.seen = memory.numpy()
