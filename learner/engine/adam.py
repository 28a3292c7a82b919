"""Adam (Kingma and Ba 2015, arXiv:1412.6980) over one flat vector, with all that surrounds its step.

By torch: learner/updates/optimiser.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np

from learner.config import LearnerConfig
from learner.engine.module import Module

FIRST, SECOND = 0.9, 0.999  # decay of the two moments
SHARES = 1 - FIRST, 1 - SECOND  # of the newest gradient
# Moments of a tensor without gradient halve for ever. Below 1e-38 each operation on them takes a hundred times as long.
FLUSH_INTERVAL, SMALLEST = 100, np.float32(1e-30)
MOMENTS = ("exp_avg", "exp_avg_sq")  # as torch calls them
CHUNK = 65_536  # entries of the vectors that are moved at once: about as many as the cache holds


class Process(Protocol):
    """The learner process, as an optimiser sees it."""

    config: LearnerConfig

    def stepped(self, optimiser: FlatAdam, items: int) -> None:
        """Called after each step."""


class FlatAdam:
    """Optimises the trained tensors of modules. Values, gradients and both moments are a vector each.

    The moments are kept as sums, which are the moments divided by SHARES: that takes fewer operations.

    A step whose gradient is not finite is skipped and counted.
    """

    def __init__(
        self,
        process: Process,
        modules: Sequence[Module],
        learning_rate: float,
        rates: Mapping[Module, float] = MappingProxyType({}),
    ) -> None:
        """`rates`: learning rates of single modules, which come last in the vectors, as in torch's groups. Raises ValueError."""
        config = process.config
        if config.batch_size % config.accumulation:
            raise ValueError(
                f"learner.batch_size {config.batch_size} must be a multiple of learner.accumulation {config.accumulation}"
            )
        self._process, self._epsilon, self._max_grad_norm = process, config.adam_epsilon, config.max_grad_norm
        self.modules = [*(module for module in modules if module not in rates), *rates]
        size = sum(module.flat.size for module in self.modules)
        self.values, self.gradient, *self._sums = (np.zeros(size, np.float32) for _ in range(2 + len(MOMENTS)))
        self._scratch = np.empty(size, np.float32)
        self._rates = [rates.get(module, learning_rate) for module in self.modules]
        self._steps = 0
        ends = np.cumsum([module.flat.size for module in self.modules]).tolist()
        self._places = [slice(end - module.flat.size, end) for end, module in zip(ends, self.modules, strict=True)]
        for place, module in zip(self._places, self.modules, strict=True):
            module.move(self.values[place], self.gradient[place])
        self._share = self._schedule = 1.0  # of the rates: as the algorithm says, and as the run's schedule does
        self.skipped, self.skipped_in_a_row = 0, 0

    @property
    def parameters(self) -> list[np.ndarray]:
        """All trained tensors, in torch's order."""
        return [module.tensors[name] for module in self.modules for name in module.trained]

    @property
    def learning_rate(self) -> float:
        """That of the next step and of the first tensors."""
        return self._share * self._schedule * self._rates[0]

    def scale_learning_rate(self, share: float) -> None:
        """Multiplies the configured learning rate by `share`, from the next step on."""
        self._share = share

    def follow_schedule(self, share: float) -> None:
        """Multiplies the learning rate by `share`, too, from the next step on."""
        self._schedule = share

    def step(self, items: int) -> np.float32:
        """One step by the gradients that backward() has written, of `items` items. Returns their norm before clipping."""
        norm = np.sqrt(np.dot(self.gradient, self.gradient))
        if math.isfinite(norm):
            if norm + 1e-6 > self._max_grad_norm:
                self.gradient *= np.float32(self._max_grad_norm / (norm + 1e-6))
            self._move()
            self.skipped_in_a_row = 0
        else:
            self.skipped += 1
            self.skipped_in_a_row += 1
        self._process.stepped(self, items)
        return norm  # type: ignore[no-any-return]

    def _move(self) -> None:
        self._steps += 1
        steps, total = self._steps, len(self.values)
        # Both bias corrections are in two numbers, as at the end of section 2 of the paper, and so are the weights of the sums.
        root = math.sqrt((1 - SECOND**steps) / SHARES[1])
        epsilon, size = np.float32(self._epsilon * root), self._share * self._schedule * root * SHARES[0] / (1 - FIRST**steps)
        for start in range(0, total, CHUNK):
            part = slice(start, min(start + CHUNK, total))
            gradient, scratch, mean, square = (vector[part] for vector in (self.gradient, self._scratch, *self._sums))
            mean *= np.float32(FIRST)
            mean += gradient
            square *= np.float32(SECOND)
            np.multiply(gradient, gradient, out=scratch)
            square += scratch
            np.sqrt(square, out=scratch)
            scratch += epsilon
            np.divide(mean, scratch, out=scratch)
            for places, rate in self._by_rate(part):
                self._scratch[places] *= np.float32(size * rate)
            self.values[part] -= scratch
            if steps % FLUSH_INTERVAL == 0:
                for vector in (mean, square):
                    vector[np.abs(vector) < SMALLEST] = 0

    def _by_rate(self, part: slice) -> Iterator[tuple[slice, float]]:
        """Divides a part of the vectors by the learning rates of its modules."""
        if len(set(self._rates)) == 1:
            yield part, self._rates[0]
            return
        for place, rate in zip(self._places, self._rates, strict=True):
            start, stop = max(place.start, part.start), min(place.stop, part.stop)
            if start < stop:
                yield slice(start, stop), rate

    def state(self) -> dict[str, np.ndarray]:
        """All that the next step depends on, by the names that torch's optimiser gives it. From here on this one computes with
        what load_state() makes of it, so that a resumed run takes the same steps."""
        tensors = {"skipped": np.array(self.skipped, np.float32)}
        names = {}
        for name, share, vector in zip(MOMENTS, SHARES, self._sums, strict=True):
            moment = np.float32(share) * vector
            np.divide(moment, np.float32(share), out=vector)
            names[name] = self._by_tensor(moment)
        for index in range(len(self.parameters) if self._steps else 0):
            tensors[f"adam/{index}/step"] = np.array(self._steps, np.float32)
            tensors |= {f"adam/{index}/{name}": parts[index] for name, parts in names.items()}
        return tensors

    def load_state(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Restores what state() returned, or torch's; the learning rate and other options stay as configured.

        Raises ValueError for the state of another network."""
        moments = {name: self._by_tensor(vector) for name, vector in zip(MOMENTS, self._sums, strict=True)}
        shapes = [part.shape for part in moments[MOMENTS[0]]]
        found = [(int(parts[1]), parts[2], value) for name, value in tensors.items() if (parts := name.split("/"))[0] == "adam"]
        for index, name, value in found:
            if index >= len(shapes) or (name in MOMENTS and value.shape != shapes[index]):
                raise ValueError("the optimiser's state belongs to another network")
        self._steps = max((int(value) for _, name, value in found if name == "step"), default=0)
        for vector in self._sums:
            vector[:] = 0
        for index, name, value in found:
            if name in MOMENTS:
                np.divide(value, np.float32(SHARES[MOMENTS.index(name)]), out=moments[name][index])
        self.skipped = int(tensors["skipped"])
        self.reset_skips()

    def reset_skips(self) -> None:
        """Resets the count of steps skipped in a row."""
        self.skipped_in_a_row = 0

    def _by_tensor(self, vector: np.ndarray) -> list[np.ndarray]:
        """The parts of a vector like `values`, in torch's order and shapes."""
        parts, start = [], 0
        for module in self.modules:
            stop = start + module.flat.size
            parts += module.views(vector[start:stop]).values()
            start = stop
        return parts
