"""One update: a batch in micro-batches, mixed precision where the device has it, clipping, one step."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from learner.algorithms.base import Algorithm, Batch
from learner.config import LearnerConfig
from learner.devices import capabilities, precision


class Optimiser:
    """Adam (Kingma and Ba 2015, arXiv:1412.6980) and all that stands around its step.

    A step whose gradient is not finite is skipped and counted. Where Adam is fused it decides that on the device; on the
    others the host reads the norm, which is free on a CPU and a wait of the host on MPS and DirectML.
    """

    def __init__(self, parameters: list[nn.Parameter], config: LearnerConfig, device: torch.device) -> None:
        """Raises ValueError, or DeviceError for a precision the device lacks, with one line."""
        if config.batch_size % config.accumulation:
            raise ValueError(
                f"learner.batch_size {config.batch_size} must be a multiple of learner.accumulation {config.accumulation}"
            )
        self.config, self.device, self.precision = config, device, precision(config.precision, device)
        self._parameters = parameters
        self._fused = capabilities(device).fused_optimiser
        foreach = None if self._fused else False  # where Adam is not fused, kernels over many tensors are missing too
        self._adam = torch.optim.Adam(
            parameters, lr=config.learning_rate, eps=config.adam_epsilon, fused=self._fused, foreach=foreach
        )
        self._scaler = torch.amp.GradScaler(device.type) if self.precision == "float16" else None
        self._skipped = torch.zeros((), device=device)

    def update(self, algorithm: Algorithm, batch: Batch) -> tuple[dict[str, Tensor], Tensor]:
        """Learns from one batch of config.batch_size items.

        Returns metrics (0-d, on the device): the algorithm's, gradient_norm before clipping and skipped_updates so far;
        and priorities [B].
        """
        weight = algorithm.importance(batch)  # over the whole batch, before it is split
        parts = self.config.accumulation
        size = self.config.batch_size // parts
        assert len(weight) == self.config.batch_size, f"a batch of {len(weight)}, not {self.config.batch_size}"
        totals: dict[str, Tensor] = {}
        priorities = []
        for start in range(0, self.config.batch_size, size):
            with self._autocast():
                loss, priority, metrics = algorithm.loss(batch.part(start, start + size), weight[start : start + size])
                share = loss / parts  # the micro-batches' shares add up to the mean over the batch
            (share if self._scaler is None else self._scaler.scale(share)).backward()
            priorities.append(priority)
            for name, value in metrics.items():
                totals[name] = totals[name] + value / parts if name in totals else value / parts
        totals["gradient_norm"] = self._step()
        totals["skipped_updates"] = self._skipped.clone()
        algorithm.after_update()
        return totals, torch.cat(priorities)

    def _autocast(self) -> AbstractContextManager[object]:
        """A fresh context per micro-batch: leaving it drops the converted parameters."""
        if self.precision == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=getattr(torch, self.precision))

    def _step(self) -> Tensor:
        """Clips, steps unless the gradient is not finite, forgets the gradient. Returns its norm before clipping, 0-d."""
        if self._scaler is not None:
            self._scaler.unscale_(self._adam)
        norm = nn.utils.clip_grad_norm_(self._parameters, self.config.max_gradient_norm)
        broken = (~norm.isfinite()).float()
        self._skipped += broken
        if self._scaler is not None:
            self._scaler.step(self._adam)  # it looks at every gradient itself
            self._scaler.update()
        elif self._fused:
            self._adam.found_inf = broken  # type: ignore[attr-defined]  # where GradScaler tells a fused step to do nothing
            self._adam.step()
        elif not broken:
            self._adam.step()
        self._adam.zero_grad(set_to_none=True)
        return norm
