"""One update: a batch in micro-batches, mixed precision where the device has it, clipping, one step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn

from learner.config import LearnerConfig
from learner.devices.capabilities import capabilities, clear_cache, fork_random, precision
from learner.networks.base import large_convolutions
from learner.parallel.group import ALONE, Group
from learner.updates.adam import make_adam
from learner.updates.base import Algorithm, BatchT
from learner.updates.compile import Loss
from learner.updates.dense import Known
from learner.updates.memory_fit import bytes_per_item, fitting_parts, free_bytes, is_out_of_memory, limit_memory

MEASURED_ITEMS = 8  # by which the memory of a batch is foreseen
Answer = tuple[dict[str, Tensor], Tensor]  # metrics, 0-d each; priorities [N]
SCALER_STATE = ("scale", "_growth_tracker")  # what changes; the rest is configuration


class Optimiser:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) and all that stands around its step.

    A step whose gradient is not finite is skipped and counted. Where Adam is fused it decides that on the device; on the
    others the host reads the norm, which is free on a CPU and a wait of the host on MPS and DirectML. What float16 skips to find
    its loss scale is no trouble, and counts only once the scale cannot be the reason.
    """

    def __init__(
        self,
        parameters: list[nn.Parameter],
        config: LearnerConfig,
        device: torch.device,
        rates: Mapping[nn.Parameter, float] = MappingProxyType({}),
        group: Group = ALONE,
    ) -> None:
        """`rates` has the learning rates of the last parameters, where they are not the configured one. Every process of the
        `group` takes the same steps.

        Raises ValueError, or DeviceError for a precision the device lacks, with one line."""
        if config.batch_size % config.accumulation:
            raise ValueError(
                f"learner.batch_size {config.batch_size} must be a multiple of learner.accumulation {config.accumulation}"
            )
        self.config, self.device, self._group = config, device, group
        self.precision = precision(config.precision, device, large_convolutions(parameters))
        self.compiled_loss: Loss | None = None  # to be used instead of the algorithm's own
        self.recorded: Callable[[Any], Answer] | None = None  # to be used instead of compute()
        self._parameters = parameters
        able = capabilities(device)
        self._fused = able.adam == "fused"
        self._foreach = None if able.adam != "single" else False  # None: torch decides, which is wrong about DirectML
        usual = [parameter for parameter in parameters if parameter not in rates]
        groups: list[dict[str, Any]] = [
            {"params": usual},
            *({"params": [parameter], "lr": rate} for parameter, rate in rates.items()),
        ]
        self._adam = make_adam(groups, config.learning_rate, config.adam_epsilon, able)
        self._rates = [group["lr"] for group in self._adam.param_groups]
        self._scaler = torch.amp.GradScaler(device.type) if self.precision == "float16" else None
        self._skipped = torch.zeros((), device=device)
        self._in_a_row = torch.zeros((), device=device)  # of these, since the last step that was taken
        self.parts = config.accumulation  # micro-batches of a batch; more when memory is short
        self._fitted = False
        if config.memory_limit_bytes:
            limit_memory(device, config.memory_limit_bytes)

    def update(self, algorithm: Algorithm[BatchT], batch: BatchT) -> Answer:
        """Learns from one batch of N items. Returns metrics (0-d, on the device): the algorithm's, gradient_norm before clipping,
        skipped_updates so far and skipped_in_a_row; and priorities [N]. They last until the next update.

        Raises MemoryError when a single item does not fit.
        """
        answer = self.recorded(batch) if self.recorded else self.compute(algorithm, batch)
        algorithm.after_update()
        return answer

    def compute(self, algorithm: Algorithm[BatchT], batch: BatchT) -> Answer:
        """All of an update but the algorithm's after_update(): in as many parts as it takes to fit into memory, the last maybe
        smaller."""
        weight = algorithm.importance(batch)  # over the whole batch, before it is split
        weight = weight / self._group.greatest(weight.max())
        if not self._fitted:
            self._fit(algorithm, batch, weight)
        while True:
            try:
                totals, priorities = self._differentiate(algorithm, batch, weight)
                break  # only now are the others needed: an error on the way here leaves nobody waiting in the middle of a sum
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            self._split_further(len(weight))  # here, where the error no longer holds what was computed
        self._group.average(self._parameters, len(weight))
        totals["gradient_norm"] = self._step()
        totals["skipped_updates"], totals["skipped_in_a_row"] = self._skipped.clone(), self._in_a_row.clone()
        return totals, priorities

    def changed_tensors(self, algorithm: Algorithm[BatchT]) -> list[Tensor]:
        """Whatever compute() changes: parameters, running statistics, moments, counters."""
        buffers = [buffer for module in algorithm.modules().values() for buffer in module.buffers()]
        return [*algorithm.parameters(), *buffers, *self.state().values(), self._in_a_row]

    def forget_trouble(self) -> None:
        """What was skipped in a row no longer counts as that."""
        self._in_a_row.zero_()

    def forget_gradient(self) -> None:
        """The next update begins without one."""
        for parameter in self._parameters:
            parameter.grad = None

    def _differentiate(self, algorithm: Algorithm[BatchT], batch: BatchT, weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        """Adds up the gradients of all parts; their mean metrics and all priorities."""
        loss_of = self.compiled_loss or algorithm.loss
        items = len(weight)
        if self.parts == 1:
            with self.autocast():
                loss, priorities, metrics = loss_of(batch, weight)
            self._backward(loss)
            return dict(metrics), priorities
        size = -(-items // self.parts)
        totals: dict[str, Tensor] = {}
        parts = []
        for start in range(0, items, size):
            stop = min(start + size, items)
            share = (stop - start) / items  # the micro-batches' shares add up to the mean over the batch
            with self.autocast():
                loss, priority, metrics = loss_of(batch.part(start, stop), weight[start:stop])
                loss = loss * share
            self._backward(loss)
            parts.append(priority)
            for name, value in metrics.items():
                totals[name] = totals[name] + value * share if name in totals else value * share
        return totals, torch.cat(parts)

    def _backward(self, loss: Tensor | Known) -> None:
        if self._scaler is not None:
            loss = loss * self._scaler.scale(torch.ones((), device=self.device))
        loss.backward()  # type: ignore[no-untyped-call]

    def _fit(self, algorithm: Algorithm[BatchT], batch: BatchT, weight: Tensor) -> None:
        """Foresees how many parts it takes, by what a few items keep for the backward pass."""
        self._fitted = True
        some = min(MEASURED_ITEMS, len(weight))
        kept = [(buffer, buffer.clone()) for module in algorithm.modules().values() for buffer in module.buffers()]
        with fork_random(self.device), self.autocast():
            each = bytes_per_item(lambda: algorithm.loss(batch.part(0, some), weight[:some])[0], self._parameters, some)
        for buffer, before in kept:  # running statistics, which this must not move
            buffer.copy_(before)
        parts = fitting_parts(len(weight), self.parts, each, free_bytes(self.device, self.config.memory_limit_bytes))
        if parts != self.parts:
            self._group.say(
                f"an item takes {each / 1e3:,.1f} kB: micro-batches of {-(-len(weight) // parts):,}, accumulated over {parts}"
            )
        self.parts = parts

    def _split_further(self, items: int) -> None:
        """After an allocation failed: forgets the gradient, gives memory back, halves the micro-batch."""
        self.forget_gradient()
        clear_cache(self.device)
        if self.parts >= items:
            raise MemoryError("out of memory with a single item: a smaller network or observation is needed")
        self.parts = min(2 * self.parts, items)
        self._group.warn(f"out of memory: micro-batches are halved to {-(-items // self.parts):,}, accumulated over {self.parts}")

    @property
    def learning_rate(self) -> float:
        """Of the next update."""
        return float(self._adam.param_groups[0]["lr"])

    def set_learning_rate_share(self, share: float) -> None:
        """From the next update on, steps are of this share of the configured learning rate."""
        for group, rate in zip(self._adam.param_groups, self._rates, strict=True):
            group["lr"] = share * rate

    def state(self) -> dict[str, Tensor]:
        """Adam's moments per parameter, the loss scale and what was skipped: all that the next step depends on."""
        tensors = {"skipped": self._skipped}
        for index, moments in self._adam.state_dict()["state"].items():
            tensors.update({f"adam/{index}/{name}": value for name, value in moments.items()})
        if self._scaler is not None:
            scaler = self._scaler.state_dict()
            for name in SCALER_STATE:
                tensors[f"scaler/{name}"] = torch.tensor(float(scaler[name]), dtype=torch.float64)
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Takes up what state() gave; the learning rate and the like stay as configured now.

        Raises ValueError when it is the state of another network.
        """
        moments: dict[int, dict[str, Tensor]] = {}
        for name, value in tensors.items():
            if not name.startswith("adam/"):
                continue
            _, number, moment = name.split("/")
            index = int(number)
            if index >= len(self._parameters) or (value.dim() and value.shape != self._parameters[index].shape):
                raise ValueError("the optimiser's state is that of another network")
            if value.dim():  # fused kernels want moments laid out as their parameter is
                value = torch.zeros_like(self._parameters[index]).copy_(value)
            moments.setdefault(index, {})[moment] = value
        self._adam.load_state_dict({"state": moments, "param_groups": self._adam.state_dict()["param_groups"]})
        self._skipped.copy_(tensors["skipped"])
        self.forget_trouble()
        self.recorded = None  # it knows the tensors that were
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
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.max_gradient_norm, foreach=self._foreach)
        broken = (~norm.isfinite()).float()
        trouble = broken
        if self._scaler is not None:
            trouble = broken * (self._scaler.scale(torch.ones((), device=self.device)) <= 1)
        self._skipped += trouble
        self._in_a_row.add_(trouble).mul_(broken)
        if self._scaler is not None:
            self._scaler.step(self._adam)  # it looks at every gradient itself
            self._scaler.update()
        elif self._fused:
            self._adam.found_inf = broken  # type: ignore[attr-defined]  # where GradScaler tells a fused step to do nothing
            self._adam.step()
        elif not broken:
            self._adam.step()
        self.forget_gradient()
        return norm
