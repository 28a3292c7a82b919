"""How a step is computed: as it stands, by a compiled loss, or launched as one from a recorded graph.

Compiling and recording are tried where the configuration asks for them, on steps of one loss and one size. Without success a line
says why, and steps are computed as they stand.
"""

from __future__ import annotations

import time
from typing import Any

from learner.devices.capabilities import capabilities
from learner.updates.base import LossFunction, Outcome
from learner.updates.compile import CompileError, cache_in, compile_loss
from learner.updates.graphs import Recorded, RecordError, record
from learner.updates.internal import Host, Stepper
from learner.updates.trees import count, part, shapes

WARM_STEPS = 20  # alike, before a graph is recorded: kernels have been chosen then, and Adam has its moments


class Acceleration:
    """Chooses the way of each step of one optimiser."""

    def __init__(self, optimiser: Stepper, host: Host) -> None:
        self._optimiser, self._host = optimiser, host
        self._compile, self._record = host.config.compile, host.config.graphs  # still to be tried
        if self._compile and not (able := capabilities(host.device)).compiles:
            host.group.say(f"warning: --learner.compile is left out: torch.compile does not know {able.name}")
            self._compile = False
        if self._record and host.group.size > 1:  # one process could fail to, and then they would no longer do the same
            host.group.say("warning: --learner.graphs is for a learner of one process; updates run as they are")
            self._record = False
        self._kind: tuple[Any, ...] | None = None  # of the last step: its loss, and the shapes of what it was given
        self._alike = 0  # steps of that kind before it
        self._recorded: tuple[tuple[Any, ...], Recorded] | None = None
        self._compiled: tuple[tuple[Any, ...], LossFunction] | None = None
        self._explained = False

    def step(self, loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """inputs: (items, *shared)."""
        if not (self._compile or self._record or self._recorded):
            return self._optimiser.take(loss, inputs)
        kind = (loss, shapes(inputs))
        if self._recorded is not None and kind == self._recorded[0]:
            return self._recorded[1](inputs)
        self._look(kind)
        if self._compile and self._alike:  # the first step has shown how many items fit into memory
            self._compile = False
            self._try_to_compile(loss, inputs)
        if self._record and self._alike >= WARM_STEPS:
            self._record = False
            return self._try_to_record(kind, loss, inputs)
        return self._optimiser.take(loss, inputs)

    def compiled(self, loss: LossFunction, items: Any) -> LossFunction:
        """What computes `loss` for items like these."""
        if self._compiled is None or self._compiled[0] != (loss, shapes(items)):
            return loss
        return self._compiled[1]

    def forget_graph(self) -> None:
        """A new one is recorded in time."""
        if self._recorded is not None:
            self._recorded, self._record = None, True
        self._kind, self._alike = None, 0

    def learning_rate_changed(self) -> None:
        """A graph has the rate in it as a number."""
        if self._record or self._recorded:
            self._host.group.say("warning: --learner.graphs is left out: the learning rate changes; updates run as they are")
        self._recorded, self._record = None, False

    def _look(self, kind: tuple[Any, ...]) -> None:
        if self._kind is not None and kind != self._kind and not self._explained:
            self._explained = True
            self._host.group.say(
                "warning: --learner.compile and --learner.graphs are for updates of one size; those of others run as they are"
            )
        self._alike = self._alike + 1 if kind == self._kind else 0
        self._kind = kind

    def _try_to_compile(self, loss: LossFunction, inputs: tuple[Any, ...]) -> None:
        """Compiles the loss for micro-batches like these, beating all the while."""
        optimiser, host, group = self._optimiser, self._host, self._host.group
        items = part(inputs[0], 0, -(-count(inputs[0]) // optimiser.parts))
        group.say("compiling the update, which may take minutes …")
        begun = time.monotonic()
        host.gauge("compiling", 1)
        try:
            with cache_in(host.compiled):
                compiled = compile_loss(optimiser, loss, (items, *inputs[1:]), host.waiting)
        except CompileError as error:
            if host.waiting():
                group.warn(f"warning: the update is not compiled ({error}); training goes on as without --learner.compile")
            return
        finally:
            host.gauge("compiling", 0)
        self._compiled = (loss, shapes(items)), compiled
        group.say(f"compiled the update in {time.monotonic() - begun:.0f} s")

    def _try_to_record(self, kind: tuple[Any, ...], loss: LossFunction, inputs: tuple[Any, ...]) -> Outcome:
        """Does this step, and records a graph of it for those that follow."""
        group = self._host.group
        try:
            outcome, recorded = record(self._optimiser, loss, inputs)
        except RecordError as error:
            group.say(f"warning: updates are not recorded ({error}); training goes on as without --learner.graphs")
            return self._optimiser.take(loss, inputs)
        self._recorded = kind, recorded
        group.say("updates are recorded, and launched as one from now on")
        return outcome
