"""The optimiser step: micro-batches, mixed precision, averaging over the group, gradient clipping, Adam."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from learner.devices.capabilities import capabilities, clear_cache, fork_random, precision
from learner.networks.base import large_convolutions, overlapping_convolutions
from learner.parallel.base import Group
from learner.updates.acceleration import Acceleration
from learner.updates.adam import make_adam
from learner.updates.base import LearnerProcess, LossFunction, Outcome, Tensors
from learner.updates.memory_fit import bytes_per_item, fitting_parts, free_bytes, is_out_of_memory, limit_memory
from learner.updates.trees import count, part

FEW_ITEMS = 32  # up to which float32 takes 0.85 of bfloat16's time for the network compact on a CPU; with 64 it takes as much
MEASURED_ITEMS = 8  # from which the memory of a batch is estimated
SCALER_STATE = ("scale", "_growth_tracker")  # of GradScaler.state_dict(); the rest is configuration


class AdamOptimiser:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) with all that surrounds its step; implements Optimiser of base.py.

    A step whose gradient is not finite is skipped and counted. A GPU with fused Adam decides that by itself. Elsewhere the host
    reads the norm: free on a CPU, a synchronisation on XPU, MPS and DirectML. With float16, skips by which the loss scale is
    found are not counted; those at a scale of at most 1 are.
    """

    def __init__(
        self,
        process: LearnerProcess,
        modules: Sequence[nn.Module],
        learning_rate: float,
        rates: Mapping[nn.Module, float],
        recordable: bool = False,
    ) -> None:
        """`rates`: learning rates of single modules. `recordable`: as Runtime.optimiser's.

        Raises ValueError, and DeviceError for a precision that the device lacks.
        """
        config = process.config
        if config.batch_size % config.accumulation:
            raise ValueError(
                f"learner.batch_size {config.batch_size} must be a multiple of learner.accumulation {config.accumulation}"
            )
        self.config, self.device, self.process = config, process.device, process
        own = {parameter: rate for module, rate in rates.items() for parameter in module.parameters()}
        every = dict.fromkeys(parameter for module in modules for parameter in module.parameters())
        self.parameters = [*(parameter for parameter in every if parameter not in own), *own]  # in the order of Adam's groups
        self.buffers = [buffer for module in modules for buffer in module.buffers()]  # a loss may change them
        able = capabilities(self.device)
        large = large_convolutions(self.parameters, able.narrow_kernels)
        if able.synchronous and config.batch_size // config.accumulation <= FEW_ITEMS:
            large = large and overlapping_convolutions(modules)
        self.precision = precision(config.precision, self.device, large)
        self._synchronous = able.synchronous
        self._device_decides = able.adam == "fused" and not able.synchronous  # whether a step is skipped
        self._foreach = None if able.adam != "single" else False  # None: torch decides; for DirectML it decides wrongly
        groups: list[dict[str, Any]] = [
            {"params": [parameter for parameter in self.parameters if parameter not in own]},
            *({"params": [parameter], "lr": rate} for parameter, rate in own.items()),
        ]
        self.adam = make_adam(groups, learning_rate, config.adam_epsilon, able)
        self._rates = [group["lr"] for group in self.adam.param_groups]
        self._share = self._schedule = 1.0  # of the rates: as the algorithm says, and as the run's schedule does
        self.scaler = torch.amp.GradScaler(self.device.type) if self.precision == "float16" else None
        self.skipped = torch.zeros((), device=self.device)
        self.skipped_in_a_row = torch.zeros((), device=self.device)  # since the last step that was not skipped
        self.parts = config.accumulation  # micro-batches per batch; more when memory is short
        self._measured = False  # whether `parts` has been checked against the memory
        if config.memory_limit_bytes:
            limit_memory(self.device, config.memory_limit_bytes)
        self.acceleration = Acceleration(self, process, recordable)

    @property
    def group(self) -> Group:
        return self.process.group

    def step(self, loss: LossFunction, items: Any, *shared: Any) -> Outcome:
        outcome = self.acceleration.step(loss, (items, *shared))
        self.process.stepped(self, count(items))
        return outcome

    def step_eagerly(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """Takes a step eagerly, in as many micro-batches as memory requires; inputs: (items, *shared)."""
        items, number = inputs[0], count(inputs[0])
        if not self._measured:
            self._measure(loss, items, inputs[1:])
        while True:
            try:
                totals, priorities = self._differentiate(loss, items, inputs[1:])
                break  # collectives come only after this, so an error here leaves no other process waiting
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._split_further(number)  # not in the except block, where the error still references the activations
        self.group.average([each for each in self.parameters if each.requires_grad], number)  # a loss may leave some alone
        totals["gradient_norm"] = self._step()
        return Outcome(totals, priorities)

    def changed_tensors(self) -> list[Tensor]:
        """All tensors that step_eagerly() changes: parameters, running statistics, moments, counters."""
        return [*self.parameters, *self.buffers, *self.state().values(), self.skipped_in_a_row]

    def reset_skips(self) -> None:
        """Resets the count of steps skipped in a row."""
        self.skipped_in_a_row.zero_()

    def forget_gradient(self) -> None:
        for parameter in self.parameters:
            parameter.grad = None

    def _differentiate(self, loss_of: LossFunction, items: Any, shared: tuple[Any, ...]) -> tuple[Tensors, Tensor | None]:
        """Accumulates the gradients of all micro-batches. Returns their mean metrics and all priorities."""
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
            share = (stop - start) / number  # shares sum to 1, so the losses add up to the mean over the batch
            micro_batch = part(items, start, stop)
            with self.autocast():
                loss = self.acceleration.compiled(loss_of, micro_batch)(micro_batch, *shared)
                value = loss.value * share
            self._backward(value)
            priorities.append(loss.priority)
            for name, metric in loss.metrics.items():
                totals[name] = totals[name] + metric * share if name in totals else metric * share
        return totals, None if priorities[0] is None else torch.cat([each for each in priorities if each is not None])

    def _backward(self, loss: Tensor) -> None:
        if self.scaler is not None:
            loss = loss * self.scaler.scale(torch.ones((), device=self.device))
        loss.backward()  # type: ignore[no-untyped-call]

    def _measure(self, loss_of: LossFunction, items: Any, shared: tuple[Any, ...]) -> None:
        """Sets the number of micro-batches from the memory that a few items take."""
        self._measured = True
        number = count(items)
        some = min(MEASURED_ITEMS, number)
        kept = [(buffer, buffer.clone()) for buffer in self.buffers]
        with fork_random(self.device), self.autocast():
            each = bytes_per_item(lambda: loss_of(part(items, 0, some), *shared).value, self.parameters, some)
        for buffer, before in kept:  # running statistics, which this must not change
            buffer.copy_(before)
        parts = fitting_parts(number, self.parts, each, free_bytes(self.device, self.config.memory_limit_bytes))
        if parts != self.parts:
            self.group.say(
                f"an item takes {each / 1e3:,.1f} kB: micro-batches of {-(-number // parts):,}, accumulated over {parts}"
            )
        self.parts = parts

    def _split_further(self, items: int) -> None:
        """After an out-of-memory error: drops the gradients, empties the allocator's cache, halves the micro-batch."""
        self.forget_gradient()
        clear_cache(self.device)
        if self.parts >= items:
            raise MemoryError("out of memory with a single item: use a smaller network or smaller observations")
        self.parts = min(2 * self.parts, items)
        self.group.warn(f"out of memory: micro-batches are halved to {-(-items // self.parts):,}, accumulated over {self.parts}")

    @property
    def learning_rate(self) -> float:
        """That of the next step and of the first parameters; reads no tensor."""
        return float(self._share * self._schedule * self._rates[0])

    def scale_learning_rate(self, share: float) -> None:
        if share != self._share:
            self._share = share
            self._set_rates(share * self._schedule)

    def follow_schedule(self, share: float) -> None:
        """Multiplies the learning rate by `share`, too, from the next step on."""
        if share != self._schedule:
            self._schedule = share
            self._set_rates(share * self._share)

    def _set_rates(self, share: float) -> None:
        for group, rate in zip(self.adam.param_groups, self._rates, strict=True):
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(share * rate)
            elif self.acceleration.may_record:  # a graph has the number in it, but reads a tensor: the next one follows the rate
                group["lr"] = torch.full((), share * rate, device=self.device)
                self.acceleration.forget_graph()
            else:
                group["lr"] = share * rate

    def state(self) -> Tensors:
        """All that the next step depends on: Adam's moments by parameter, the loss scale, the count of skipped steps."""
        tensors = {"skipped": self.skipped}
        for index, moments in self.adam.state_dict()["state"].items():
            tensors.update({f"adam/{index}/{name}": value for name, value in moments.items()})
        if self.scaler is not None:
            scaler = self.scaler.state_dict()
            for name in SCALER_STATE:
                tensors[f"scaler/{name}"] = torch.tensor(float(scaler[name]), dtype=torch.float64)
        return tensors

    def load_state(self, tensors: Tensors) -> None:
        """Restores what state() returned; the learning rate and other options stay as configured.

        Raises ValueError for the state of another network.
        """
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if not name.startswith("adam/"):
                continue
            _, number, moment = name.split("/")
            index = int(number)
            if index >= len(self.parameters) or (value.dim() and value.shape != self.parameters[index].shape):
                raise ValueError("the optimiser's state belongs to another network")
            if value.dim():  # fused kernels need moments in the memory format of their parameter
                value = torch.zeros_like(self.parameters[index]).copy_(value)
            moments.setdefault(index, {})[moment] = value
        self.adam.load_state_dict({"state": moments, "param_groups": self.adam.state_dict()["param_groups"]})
        self.skipped.copy_(tensors["skipped"])
        self.reset_skips()
        self.acceleration.forget_graph()  # it refers to the old tensors
        if self.scaler is not None and f"scaler/{SCALER_STATE[0]}" in tensors:
            kept = {name: float(tensors[f"scaler/{name}"]) for name in SCALER_STATE}
            kept["_growth_tracker"] = int(kept["_growth_tracker"])
            self.scaler.load_state_dict(self.scaler.state_dict() | kept)

    def autocast(self) -> AbstractContextManager[object]:
        """Enter a new context for each micro-batch: leaving it frees the converted parameters."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def _step(self) -> Tensor:
        """Clips the gradient, takes the step if it is finite, then drops it. Returns its norm before clipping, 0-d."""
        if self.scaler is not None:
            self.scaler.unscale_(self.adam)
        norm = self._clip()
        if self.scaler is not None or self._device_decides:
            self._step_on_device(norm)
        elif math.isfinite(float(norm)):
            self.adam.step()
            self.skipped_in_a_row.zero_()
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        self.forget_gradient()
        return norm

    def _clip(self) -> Tensor:
        """Scales the gradient down to the greatest norm. Returns its norm before, 0-d."""
        most = self.config.max_grad_norm
        gradients = [parameter.grad for parameter in self.parameters if parameter.grad is not None]
        if not self._synchronous or not gradients:
            return nn.utils.clip_grad_norm_(self.parameters, most, foreach=self._foreach)
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(gradient) for gradient in gradients]))
        factor = most / (norm + 1e-6)  # as torch's
        if float(factor) < 1.0:  # read without waiting, so that most gradients are left as they are
            for gradient in gradients:
                gradient.mul_(factor)
        return norm

    def _step_on_device(self, norm: Tensor) -> None:
        """Takes the step if its norm is finite and counts it if not, without waiting for the device."""
        broken = (~norm.isfinite()).float()
        if self.scaler is None:
            self.adam.found_inf = trouble = broken  # type: ignore[attr-defined]  # as GradScaler does: a fused step with found_inf does nothing
            self.adam.step()
        else:
            trouble = broken * (self.scaler.scale(torch.ones((), device=self.device)) <= 1)
            self.scaler.step(self.adam)  # checks every gradient itself
            self.scaler.update()
        self.skipped += trouble
        self.skipped_in_a_row.add_(trouble).mul_(broken)
