"""One step of Adam: items in micro-batches, mixed precision where the device has it, clipping, one step for the whole group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities, clear_cache, fork_random, precision
from learner.networks.base import large_convolutions
from learner.parallel.group import Group
from learner.updates.acceleration import Acceleration
from learner.updates.adam import make_adam
from learner.updates.base import LossFunction, Outcome, Tensors
from learner.updates.dense import KnownGradients
from learner.updates.internal import Host
from learner.updates.memory_fit import bytes_per_item, fitting_parts, free_bytes, is_out_of_memory, limit_memory
from learner.updates.trees import count, part

MEASURED_ITEMS = 8  # by which the memory of a batch is estimated
SCALER_STATE = ("scale", "_growth_tracker")  # what changes; the rest is configuration


class AdamOptimiser:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) and everything that stands around its step.

    A step whose gradient is not finite is skipped and counted. Where Adam is fused it decides that on the device; on the
    others the host reads the norm, which is free on a CPU and a wait of the host on MPS and DirectML. What float16 skips to find
    its loss scale is not counted, unless the scale cannot be the reason.
    """

    def __init__(self, host: Host, modules: Sequence[nn.Module], learning_rate: float, rates: Mapping[nn.Module, float]) -> None:
        """Raises ValueError, or DeviceError for a precision that the device lacks, with one line."""
        config = host.config
        if config.batch_size % config.accumulation:
            raise ValueError(
                f"learner.batch_size {config.batch_size} must be a multiple of learner.accumulation {config.accumulation}"
            )
        self.config, self.device, self._host = config, host.device, host
        self.parameters = list(dict.fromkeys(parameter for module in modules for parameter in module.parameters()))
        self.buffers = [buffer for module in modules for buffer in module.buffers()]  # a loss may change these
        self.precision = precision(config.precision, self.device, large_convolutions(self.parameters))
        able = capabilities(self.device)
        self._fused = able.adam == "fused"
        self._foreach = None if able.adam != "single" else False  # None: torch decides, which is wrong about DirectML
        own = {parameter: rate for module, rate in rates.items() for parameter in module.parameters()}
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in self.parameters if parameter not in own]},
            *({"params": [parameter], "lr": rate} for parameter, rate in own.items()),
        ]
        self._adam = make_adam(groups, learning_rate, config.adam_epsilon, able)
        self._rates = [group["lr"] for group in self._adam.param_groups]
        self._scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None
        self.skipped = torch.zeros((), device=self.device)
        self.skipped_in_a_row = torch.zeros((), device=self.device)  # since the last step that was taken
        self.parts = config.accumulation  # micro-batches of a batch; more when memory is short
        self._fitted = False
        if config.memory_limit_bytes:
            limit_memory(self.device, config.memory_limit_bytes)
        self.acceleration = Acceleration(self, host)

    @property
    def group(self) -> Group:
        return self._host.group

    def step(self, loss: LossFunction, items: Any, *shared: Any) -> Outcome:
        outcome = self.acceleration.step(loss, (items, *shared))
        self._host.stepped(self, count(items))
        return outcome

    def take(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """A step as it stands, in as many parts as it takes to fit into memory; inputs: (items, *shared)."""
        items, number = inputs[0], count(inputs[0])
        if not self._fitted:
            self._fit(loss, items, inputs[1:])
        while True:
            try:
                totals, priorities = self._differentiate(loss, items, inputs[1:])
                break  # the other processes are needed only from here on: an error before leaves none of them waiting in a sum
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._split_further(number)  # here, where the error no longer holds what was computed
        self.group.average(self.parameters, number)
        totals["gradient_norm"] = self._step()
        return Outcome(totals, priorities)

    def changed_tensors(self) -> list[Tensor]:
        """Whatever take() changes: parameters, running statistics, moments, counters."""
        return [*self.parameters, *self.buffers, *self.state().values(), self.skipped_in_a_row]

    def forget_trouble(self) -> None:
        """What was skipped in a row no longer counts."""
        self.skipped_in_a_row.zero_()

    def forget_gradient(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _differentiate(self, loss_of: LossFunction, items: Any, shared: tuple[Any, ...]) -> tuple[Tensors, Tensor | None]:
        """Adds up the gradients of all parts; their mean metrics and all priorities."""
        number = count(items)
        if self.parts == 1:
            loss_of = self.acceleration.compiled(loss_of, items)
            with self.autocast():
                loss = loss_of(items, *shared)
            self._backward(loss.value)
            return dict(loss.metrics), loss.priority
        size = -(-number // self.parts)
        totals: Tensors = {}
        priorities = []
        for start in range(0, number, size):
            stop = min(start + size, number)
            share = (stop - start) / number  # the micro-batches' shares add up to the mean over the batch
            some = part(items, start, stop)
            with self.autocast():
                loss = self.acceleration.compiled(loss_of, some)(some, *shared)
                value = loss.value * share
            self._backward(value)
            priorities.append(loss.priority)
            for name, metric in loss.metrics.items():
                totals[name] = totals[name] + metric * share if name in totals else metric * share
        return totals, None if priorities[0] is None else torch.cat([each for each in priorities if each is not None])

    def _backward(self, loss: Tensor | KnownGradients) -> None:
        if self._scaler is not None:
            loss = loss * self._scaler.scale(torch.ones((), device=self.device))
        loss.backward()  # type: ignore[no-untyped-call]

    def _fit(self, loss_of: LossFunction, items: Any, shared: tuple[Any, ...]) -> None:
        """Estimates how many parts it takes, by what a few items keep for the backward pass."""
        self._fitted = True
        number = count(items)
        some = min(MEASURED_ITEMS, number)
        kept = [(buffer, buffer.clone()) for buffer in self.buffers]
        with fork_random(self.device), self.autocast():
            each = bytes_per_item(lambda: loss_of(part(items, 0, some), *shared).value, self.parameters, some)
        for buffer, before in kept:  # running statistics, which this must not move
            buffer.copy_(before)
        parts = fitting_parts(number, self.parts, each, free_bytes(self.device, self.config.memory_limit_bytes))
        if parts != self.parts:
            self.group.say(
                f"an item takes {each / 1e3:,.1f} kB: micro-batches of {-(-number // parts):,}, accumulated over {parts}"
            )
        self.parts = parts

    def _split_further(self, items: int) -> None:
        """After an allocation failed: forgets the gradient, gives memory back, halves the micro-batch."""
        self.forget_gradient()
        clear_cache(self.device)
        if self.parts >= items:
            raise MemoryError("out of memory with a single item: a smaller network or observation is needed")
        self.parts = min(2 * self.parts, items)
        self.group.warn(f"out of memory: micro-batches are halved to {-(-items // self.parts):,}, accumulated over {self.parts}")

    @property
    def learning_rate(self) -> float:
        """Of the next step."""
        return float(self._adam.param_groups[0]["lr"])

    def scale_learning_rate(self, share: float) -> None:
        before = self.learning_rate
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = share * rate
        if self.learning_rate != before:
            self.acceleration.learning_rate_changed()

    def state(self) -> Tensors:
        """Adam's moments per parameter, the loss scale and what was skipped: all that the next step depends on."""
        tensors = {"skipped": self.skipped}
        for index, moments in self._adam.state_dict()["state"].items():
            tensors.update({f"adam/{index}/{name}": value for name, value in moments.items()})
        if self._scaler is not None:
            scaler = self._scaler.state_dict()
            for name in SCALER_STATE:
                tensors[f"scaler/{name}"] = torch.tensor(float(scaler[name]), dtype=torch.float64)
        return tensors

    def load_state(self, tensors: Tensors) -> None:
        """Takes up what state() gave; the learning rate and the like stay as configured now.

        Raises ValueError when it is the state of another network.
        """
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if not name.startswith("adam/"):
                continue
            _, number, moment = name.split("/")
            index = int(number)
            if index >= len(self.parameters) or (value.dim() and value.shape != self.parameters[index].shape):
                raise ValueError("the optimiser's state is that of another network")
            if value.dim():  # fused kernels want moments laid out as their parameter is
                value = torch.zeros_like(self.parameters[index]).copy_(value)
            moments.setdefault(index, {})[moment] = value
        self._adam.load_state_dict({"state": moments, "param_groups": self._adam.state_dict()["param_groups"]})
        self.skipped.copy_(tensors["skipped"])
        self.forget_trouble()
        self.acceleration.forget_graph()  # it knows the tensors that were
        if self._scaler is not None and f"scaler/{SCALER_STATE[0]}" in tensors:
            kept = {name: float(tensors[f"scaler/{name}"]) for name in SCALER_STATE}
            kept["_growth_tracker"] = int(kept["_growth_tracker"])
            self._scaler.load_state_dict(self._scaler.state_dict() | kept)

    def autocast(self) -> AbstractContextManager[object]:
        """A fresh context per micro-batch: leaving it drops the converted parameters."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def _step(self) -> Tensor:
        """Clips, steps unless the gradient is not finite, forgets the gradient. Returns its norm before clipping, 0-d."""
        if self._scaler is not None:
            self._scaler.unscale_(self._adam)
        norm = nn.utils.clip_grad_norm_(self.parameters, self.config.max_grad_norm, foreach=self._foreach)
        broken = (~norm.isfinite()).float()
        trouble = broken
        if self._scaler is not None:
            trouble = broken * (self._scaler.scale(torch.ones((), device=self.device)) <= 1)
        self.skipped += trouble
        self.skipped_in_a_row.add_(trouble).mul_(broken)
        if self._scaler is not None:
            self._scaler.step(self._adam)  # it looks at every gradient itself
            self._scaler.update()
        elif self._fused:
            self._adam.found_inf = broken  # type: ignore[attr-defined]  # by which GradScaler has a fused step do nothing
            self._adam.step()
        elif not broken:
            self._adam.step()
        self.forget_gradient()
        return norm
